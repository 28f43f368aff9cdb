// The analysis of recordings made by hand, and of real steps against the formulas of
// the predicted memory and the allocator.
#include "benchmarks/training/memory_analysis.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/instruments/host_allocator.hpp"
#include "model/kernels/kernels.hpp"
#include "model/loss.hpp"
#include "model/memory_prediction.hpp"
#include "model/testing.hpp"
#include "model/train_step.hpp"

namespace tinyllama {

static void PrintTo(const Workload& workload, std::ostream* out) {
  *out << workload.variant.name() << " " << to_string(workload.dtype);
}

}  // namespace tinyllama

namespace tinyllama::training {
namespace {

using instruments::host_allocator::read;
using Json = nlohmann::ordered_json;

constexpr int64_t kMiB = 1 << 20;

/// Builds a recording event by event. Time passes only when it is told to.
class RecordingBuilder {
 public:
  explicit RecordingBuilder(int64_t live_bytes_before = 0) {
    recording_.live_bytes_before = live_bytes_before;
  }

  RecordingBuilder& step(int64_t step) {
    end_step();
    recording_.steps.push_back(stretch(step, Phase::other));
    step_is_open_ = true;
    return *this;
  }
  RecordingBuilder& phase(Phase phase) {
    end_phase();
    recording_.phases.push_back(stretch(recording_.steps.back().step, phase));
    phase_is_open_ = true;
    return *this;
  }
  RecordingBuilder& wait(double seconds) {
    now_ += seconds;
    return *this;
  }
  /// What the next events belong to. Each call is a new call of the operator.
  RecordingBuilder& in(std::string_view component, std::string_view operation) {
    component_ = index_of(component);
    operation_ = index_of(operation);
    ++call_;
    return *this;
  }
  /// `address`: any number that tells tensors apart.
  RecordingBuilder& allocate(uintptr_t address, int64_t bytes) { return add(address, bytes); }
  RecordingBuilder& release(uintptr_t address, int64_t bytes) { return add(address, -bytes); }
  RecordingBuilder& mark_gradient(uintptr_t address, std::string name, int64_t bytes) {
    recording_.marks.push_back({recording_.events.size(),
                                {TensorKind::gradient, std::move(name), pointer(address), bytes}});
    return *this;
  }
  RecordingBuilder& know(TensorKind kind, uintptr_t address, std::string name, int64_t bytes) {
    recording_.known_before.push_back({kind, std::move(name), pointer(address), bytes});
    return *this;
  }
  RecordingBuilder& resident(int64_t bytes) {
    recording_.resident_samples.push_back({recording_.events.size(), bytes});
    return *this;
  }
  RecordingBuilder& on_gpu(int64_t reserved_bytes) {
    recording_.on_gpu = true;
    reserved_bytes_ = reserved_bytes;
    return *this;
  }
  MemoryRecording finish() {
    end_step();
    return recording_;
  }

 private:
  static const void* pointer(uintptr_t address) { return reinterpret_cast<const void*>(address); }
  Stretch stretch(int64_t step, Phase phase) const {
    return {step, phase, now_, now_, recording_.events.size(), recording_.events.size()};
  }
  void close(Stretch& stretch) const {
    stretch.end_seconds = now_;
    stretch.end_event = recording_.events.size();
  }
  void end_phase() {
    if (phase_is_open_) close(recording_.phases.back());
    phase_is_open_ = false;
  }
  void end_step() {
    end_phase();
    if (step_is_open_) close(recording_.steps.back());
    step_is_open_ = false;
  }
  size_t index_of(std::string_view name) {
    auto& names = recording_.names;
    const auto at = std::ranges::find(names, name);
    if (at != names.end()) return static_cast<size_t>(at - names.begin());
    names.emplace_back(name);
    return names.size() - 1;
  }
  RecordingBuilder& add(uintptr_t address, int64_t bytes) {
    if (recording_.names.empty()) in("other", "");
    recording_.events.push_back({now_, pointer(address), bytes, reserved_bytes_,
                                 phase_is_open_ ? recording_.phases.back().phase : Phase::other,
                                 component_, operation_,
                                 recording_.names[operation_].empty() ? 0 : call_});
    return *this;
  }

  MemoryRecording recording_;
  double now_ = 0;
  size_t component_ = 0;
  size_t operation_ = 0;
  uint64_t call_ = 0;
  int64_t reserved_bytes_ = 0;
  bool step_is_open_ = false;
  bool phase_is_open_ = false;
};

// B = 2, S = 4, D = 8, H = 2: scores have 2 * 2 * 4 * 4 * 4 = 256 bytes, queries 2 * 4 * 8 * 4 =
// 256 as well; V = 10: logits have 2 * 4 * 10 * 4 = 320.
Workload workload() {
  return {ModelConfig({.vocab_size = 10,
                       .hidden_dim = 8,
                       .n_layers = 1,
                       .n_heads = 2,
                       .n_kv_heads = 1,
                       .intermediate_dim = 6}),
          Variant(), Dtype::f32, 2, 4};
}

// Before: 1000 bytes, of which parameters 400 and optimizer states 500. One step:
//   forward  scores +256 | queries +256 | logits +320 | passing +50 -50      live 1832, peak 1882
//   backward gradient of logits +320 | logits -320 | weight +400 | +320 -320   peak 2552
//            all but the weight's gradient go                                  live 1400
//   optimizer temporary +70 -70; the gradient goes                             live 1000
RecordingBuilder one_step() {
  RecordingBuilder recording(1000);
  recording.know(TensorKind::parameter, 1, "lm_head.weight", 400)
      .know(TensorKind::optimizer_state, 2, "first moment of lm_head.weight", 500);
  recording.wait(1).step(2).phase(Phase::forward);
  recording.in("attention/core", "aten::_softmax").allocate(10, 256);
  recording.in("attention/core", "aten::clone").allocate(11, 256).wait(1);
  recording.in("loss/lm_head", "aten::mm").allocate(12, 320);
  recording.in("loss/lm_head", "aten::sum").allocate(13, 50).release(13, 50).wait(1);
  recording.phase(Phase::backward);
  recording.in("loss/cross_entropy", "aten::_log_softmax_backward_data").allocate(14, 320);
  recording.in("loss/lm_head", "").release(12, 320).wait(1);
  recording.in("loss/lm_head", "aten::mm").allocate(15, 400).wait(1).allocate(16, 320);
  recording.release(16, 320).release(14, 320).release(10, 256).release(11, 256);
  recording.mark_gradient(15, "lm_head.weight", 400).phase(Phase::optimizer);
  recording.in("optimizer", "aten::sqrt").allocate(17, 70).wait(1).release(17, 70);
  recording.in("optimizer", "").release(15, 400);
  return recording;
}

Json analysis_of_one_step() {
  return analyze_memory(one_step().finish(), workload(), std::nullopt);
}

TEST(MemoryAnalysisTest, SaysWhatIsAliveWhenAndWhere) {
  const Json memory = analysis_of_one_step();
  // What lives in each of the five seconds.
  const double average = (1512 + 1832 + 1832 + 2232 + 1470) / 5.0;
  constexpr int64_t peak = 1000 + 256 + 256 + 320 + 400 + 320;
  const Json expected = {
      {"first_step", 2},
      {"last_step", 2},
      {"peak_bytes", peak},
      {"average_bytes", average},
      {"peak_to_average", peak / average},
      {"forward_peak_bytes", 1000 + 256 + 256 + 320 + 50},
      {"backward_peak_bytes", peak},
      {"optimizer_peak_bytes", 1000 + 400 + 70},
      {"baseline_bytes", 1000},
      {"live_bytes_after_steps", Json::array({1000})},
      {"peak_phase", "backward"},
      {"peak_component", "loss/lm_head"},
      {"peak_operator", "aten::mm"},
      {"peak_seconds", 4.0},  // after the step's begin at 1
      // The copy of the queries is as large as the scores; the logits are gone; 100 of before that
      // nobody knows, and two gradients on their way.
      {"breakdown_at_peak",
       {{"parameters", 400},
        {"gradients", 400},
        {"optimizer_states", 500},
        {"activations", 256},
        {"attention_scores", 256},
        {"temporary", 100 + 320 + 320}}},
      // Those that outlive the forward.
      {"component_activation_bytes", {{"attention/core", 512}, {"loss/lm_head", 320}}}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(memory.at(key), value) << key;
}

TEST(MemoryAnalysisTest, CountsAllocationsPerStep) {
  RecordingBuilder recording = one_step();
  recording.step(3).in("embedding", "aten::embedding").allocate(20, 64 << 10);
  const Json memory = analyze_memory(recording.finish(), workload(), std::nullopt);
  EXPECT_EQ(memory["allocations_per_step"], (8 + 1) / 2.0);
  EXPECT_EQ(memory["small_allocations_per_step"], 8 / 2.0) << "64 KiB are not small";
  EXPECT_EQ(memory["last_step"], 3);
  EXPECT_EQ(memory["live_bytes_after_steps"], Json::array({1000, 1000 + (64 << 10)}));
}

TEST(MemoryAnalysisTest, NamesTheLargestTensors) {
  const Json largest = analysis_of_one_step()["largest_tensors"];
  ASSERT_EQ(largest.size(), 8u);
  EXPECT_EQ(largest[0], (Json{{"name", "gradient of lm_head.weight"},
                              {"bytes", 400},
                              {"count", 1},
                              {"component", "loss/lm_head"},
                              {"operator", "aten::mm"},
                              {"phase", "backward"}}));
  std::map<std::string, int64_t> bytes;
  for (const Json& tensor : largest) bytes[tensor["name"]] = tensor["bytes"];
  EXPECT_EQ(bytes["logits [B,S,V]"], 320);
  EXPECT_EQ(bytes["gradient of logits [B,S,V]"], 320);
  EXPECT_EQ(bytes["attention_probabilities [B,H,S,S]"], 256);
  EXPECT_EQ(bytes["loss/lm_head: aten::sum"], 50);
}

TEST(MemoryAnalysisTest, TheSameTensorOfEveryLayerIsOneRow) {
  RecordingBuilder recording;
  recording.step(1).phase(Phase::backward);
  for (uintptr_t layer = 0; layer < 12; ++layer) {
    recording.in("ffn/down_proj", "aten::mm").allocate(layer + 1, 192);
    recording.mark_gradient(layer + 1, "model.layers." + std::to_string(layer) + ".mlp.weight",
                            192);
  }
  const Json memory = analyze_memory(recording.finish(), workload(), std::nullopt);
  ASSERT_EQ(memory["largest_tensors"].size(), 1u);
  EXPECT_EQ(memory["largest_tensors"][0]["name"], "gradient of model.layers.*.mlp.weight");
  EXPECT_EQ(memory["largest_tensors"][0]["count"], 12);
}

TEST(MemoryAnalysisTest, TheLargestSpikeIsOfOneCallOfAnOperator) {
  RecordingBuilder recording;
  recording.step(1).phase(Phase::optimizer);
  // Two calls of 60 each, then one of 40 + 50 that releases 10 before.
  recording.in("optimizer", "aten::sqrt").allocate(1, 60).in("optimizer", "aten::sqrt");
  recording.allocate(2, 60).in("optimizer", "aten::_foreach_sqrt").release(1, 10);
  recording.allocate(3, 40).allocate(4, 50);
  const Json memory = analyze_memory(recording.finish(), workload(), std::nullopt);
  EXPECT_EQ(memory["largest_spike"], (Json{{"bytes", 80},
                                           {"component", "optimizer"},
                                           {"operator", "aten::_foreach_sqrt"},
                                           {"phase", "optimizer"}}));
}

TEST(MemoryAnalysisTest, FragmentationIsWhatIsHeldBesideTensors) {
  RecordingBuilder gpu;
  gpu.on_gpu(4096).step(1).phase(Phase::forward).allocate(1, 1024).release(1, 1024);
  RecordingBuilder cpu;
  cpu.step(1).phase(Phase::forward).allocate(1, 600).resident(1800);
  cpu.phase(Phase::backward).release(1, 600).resident(5000);
  struct Case {
    RecordingBuilder& recording;
    std::optional<int64_t> resident_before;
    int64_t allocated;
    int64_t held;
  };
  std::set<std::string> definitions;
  for (const Case& at :
       {Case{gpu, 12345, 1024, 4096}, Case{cpu, 1000, 600, 800}, Case{cpu, {}, 600, 1800}}) {
    const Json found =
        analyze_memory(at.recording.finish(), workload(), at.resident_before)["fragmentation"];
    EXPECT_EQ(found["allocated_bytes"], at.allocated);
    EXPECT_EQ(found["held_bytes"], at.held);
    const auto free = static_cast<double>(at.held - at.allocated);
    EXPECT_DOUBLE_EQ(found["percent"].get<double>(), 100 * free / static_cast<double>(at.held));
    definitions.insert(found["definition"].get<std::string>());
  }
  EXPECT_EQ(definitions.size(), 3u);
}

TEST(MemoryAnalysisTest, AStepWithoutEventsHasItsBaselineAndNoPlaceOfAPeak) {
  RecordingBuilder recording(1000);
  recording.step(4).wait(2);
  const Json memory = analyze_memory(recording.finish(), workload(), std::nullopt);
  EXPECT_EQ(memory["peak_bytes"], 1000);
  EXPECT_EQ(memory["average_bytes"], 1000);
  EXPECT_TRUE(memory["peak_phase"].is_null());
  EXPECT_TRUE(memory["forward_peak_bytes"].is_null());
  EXPECT_TRUE(memory["largest_spike"].is_null());
  EXPECT_TRUE(memory["fragmentation"].is_null());
  EXPECT_TRUE(memory["largest_tensors"].empty());
  EXPECT_EQ(memory["breakdown_at_peak"]["temporary"], 1000);
}

TEST(MemoryAnalysisTest, GradientsFromBeforeTheRecordingAreFoundByTheirMark) {
  RecordingBuilder recording(500);
  recording.step(1).phase(Phase::backward).allocate(1, 10);
  recording.mark_gradient(9, "lm_head.weight", 400);
  const Json parts = analyze_memory(recording.finish(), workload(), {})["breakdown_at_peak"];
  EXPECT_EQ(parts["gradients"], 400);
  EXPECT_EQ(parts["temporary"], 110);
}

TEST(MemoryAnalysisTest, ARecordingWithoutStepsIsRefused) {
  EXPECT_THROW(analyze_memory(MemoryRecording(), workload(), std::nullopt), std::invalid_argument);
}

// Every product of two sizes is another number: T = 6, D = 16, KV D/H = 8, V = 101, D_ff = 37.
Workload of_unlike_sizes(Dtype dtype = Dtype::f32, int64_t batch = 2) {
  return {ModelConfig({.vocab_size = 101,
                       .hidden_dim = 16,
                       .n_layers = 1,
                       .n_heads = 2,
                       .n_kv_heads = 1,
                       .intermediate_dim = 37}),
          Variant(), dtype, batch, 3};
}

TEST(TensorNamesTest, TellTensorsByComponentPhaseOperatorAndBytes) {
  struct Case {
    Phase phase;
    const char* component;
    const char* operation;
    int64_t bytes;
    const char* name;
    bool on_gpu = false;
    Workload workload = of_unlike_sizes();
  };
  constexpr int64_t scores = 2 * 2 * 3 * 3;
  constexpr int64_t large_logits = 2'424'320;  // of batch 2000, rounded up to 512
  const auto [forward, backward] = std::pair(Phase::forward, Phase::backward);
  const Case cases[] = {
      {forward, "loss/lm_head", "aten::mm", 4 * 6 * 101, "logits [B,S,V]"},
      {forward, "ffn/gate_up_proj", "aten::mm", 4 * 6 * 37, "ffn intermediate [B,S,D_ff]"},
      {forward, "ffn/gate_up_proj", "aten::mm", 4 * 6 * 74, "ffn intermediate [B,S,2 D_ff]"},
      {forward, "attention/qkv_proj", "aten::mm", 4 * 6 * 8, "keys or values [B,S,KV,D/H]"},
      {forward, "embedding", "aten::mm", 4 * 6 * 16, "embedded tokens [B,S,D]"},
      {forward, "embedding", "aten::mm", 4 * 6 * 101, "embedding: aten::mm"},
      {forward, "other", "", 3, "other: outside operators"},
      {backward, "loss/cross_entropy", "aten::_log_softmax_backward_data", 4 * 6 * 101,
       "gradient of logits [B,S,V]"},
      {backward, "loss/cross_entropy", "aten::nll_loss_backward", 4 * 6 * 101,
       "gradient of log-probabilities [B,S,V]"},
      {backward, "embedding", "aten::embedding_dense_backward", 4 * 101 * 16,
       "gradient of embedding weight [V,D]"},
      {backward, "attention/core", "aten::_softmax_backward_data", 4 * scores,
       "gradient of attention_scores [B,H,S,S]"},
      {backward, "attention/core", "aten::bmm", 4 * scores,
       "gradient of attention_probabilities [B,H,S,S]"},
      // A GPU's allocator gives more than is asked for: 2424 bytes, rounded up to 512, and at most
      // 1 MiB more.
      {forward, "loss/lm_head", "aten::mm", 2560, "logits [B,S,V]", true},
      {forward, "loss/lm_head", "aten::mm", 2424, "loss/lm_head: aten::mm", true},
      {forward, "loss/lm_head", "aten::mm", large_logits + kMiB, "logits [B,S,V]", true,
       of_unlike_sizes(Dtype::f32, 2000)},
      {forward, "loss/lm_head", "aten::mm", large_logits + kMiB + 512, "loss/lm_head: aten::mm",
       true, of_unlike_sizes(Dtype::f32, 2000)}};
  for (const Case& at : cases) {
    RecordingBuilder recording;
    if (at.on_gpu) recording.on_gpu(at.bytes);
    recording.step(1).phase(at.phase).in(at.component, at.operation).allocate(1, at.bytes);
    const Json memory = analyze_memory(recording.finish(), at.workload, std::nullopt);
    EXPECT_EQ(memory["largest_tensors"][0]["name"], at.name) << at.component << " " << at.bytes;
  }
}

TEST(TensorNamesTest, ScoresAreNarrowOrWideWhereTheVariantHasThem) {
  const auto score_bytes = [](Dtype dtype, const Variant& variant, int64_t bytes) {
    RecordingBuilder recording;
    recording.step(1).phase(Phase::forward).in("attention/core", "aten::_softmax");
    Workload workload = of_unlike_sizes(dtype);
    workload.variant = variant;
    const Json memory = analyze_memory(recording.allocate(1, bytes).finish(), workload, {});
    return memory["breakdown_at_peak"]["attention_scores"].get<int64_t>();
  };
  constexpr int64_t scores = 2 * 2 * 3 * 3;
  EXPECT_EQ(score_bytes(Dtype::bf16, Variant(), scores * 2), scores * 2);
  EXPECT_EQ(score_bytes(Dtype::bf16, Variant(), scores * 4), scores * 4);
  EXPECT_EQ(score_bytes(Dtype::bf16, Variant(), scores * 8), 0);
  EXPECT_EQ(score_bytes(Dtype::f32, Variant({Switch::sdpa}), scores * 4), 0);
}

// `pairs` allocations and releases of 1 MiB, and one of 9 MiB amid them.
MemoryRecording many_events(size_t pairs) {
  RecordingBuilder recording(5 * kMiB);
  recording.step(2).phase(Phase::forward).in("ffn/swiglu", "aten::silu");
  for (size_t i = 0; i < pairs; ++i) {
    const int64_t bytes = i == pairs / 3 ? 9 * kMiB : kMiB;
    recording.wait(1e-5).allocate(1, bytes).wait(1e-5).release(1, bytes);
    if (i == pairs / 2) recording.phase(Phase::backward).in("loss/lm_head", "aten::mm");
  }
  return recording.finish();
}

Json timeline(const MemoryRecording& recording, size_t most_rows = 20'000) {
  return Json::parse(memory_timeline_json(recording, most_rows));
}

TEST(MemoryTimelineTest, JsonFollowsTheContract) {
  const Json document = timeline(many_events(3));
  EXPECT_EQ(document["unit"], "bytes");
  EXPECT_EQ(document["first_step"], 2);
  EXPECT_EQ(document["last_step"], 2);
  EXPECT_EQ(document["columns"], Json::array({"seconds", "live_bytes", "phase", "component"}));
  ASSERT_EQ(document["events"].size(), 6u);
  EXPECT_EQ(document["events"][0], Json::array({1e-5, 6 * kMiB, "forward", "ffn/swiglu"}));
  EXPECT_EQ(document["events"][4][2], "backward");
  ASSERT_EQ(document["phases"].size(), 2u);
  EXPECT_EQ(document["phases"][0]["step"], 2);
  EXPECT_EQ(document["phases"][0]["phase"], "forward");
  EXPECT_EQ(document["phases"][0]["begin_seconds"], 0);
  EXPECT_EQ(document["phases"][0]["end_seconds"], document["phases"][1]["begin_seconds"]);
}

TEST(MemoryTimelineTest, ThinsToTheHighestAndLowestOfEachPart) {
  const Json rows = timeline(many_events(5000), 400)["events"];
  EXPECT_EQ(rows.size(), 400u);
  std::set<int64_t> levels;
  for (const Json& row : rows) levels.insert(row[1].get<int64_t>());
  EXPECT_EQ(levels, (std::set<int64_t>{5 * kMiB, 6 * kMiB, 14 * kMiB}));
  for (size_t i = 1; i < rows.size(); ++i) {
    const double gap = rows[i][0].get<double>() - rows[i - 1][0].get<double>();
    EXPECT_GT(gap, 0) << i;
    EXPECT_LT(gap, 2 * 0.1 / 200) << "no hole at " << i;
  }
  EXPECT_EQ(timeline(many_events(200), 400)["events"].size(), 400u) << "few enough to keep";
  EXPECT_EQ(timeline(many_events(15'000))["events"].size(), 20'000u);
}

struct Recorded {
  MemoryRecording recording;
  Json memory;
  int64_t other_bytes = 0;     // alive before the model
  int64_t allocator_peak = 0;  // highest live bytes that the allocator itself counted
};

/// Two steps, as the training program runs them.
Recorded record(const Workload& workload) {
  instruments::host_allocator::install();
  Recorded result;
  result.other_bytes = read().live_bytes;
  TensorInitializer initializer(1, workload.dtype, c10::kCPU);
  const TinyLlama model(workload.config, workload.variant, workload.seq, initializer);
  AdamW optimizer(model.parameters(), workload.variant);
  TrainStep step(model, optimizer);
  MemoryRecorder recorder(c10::kCPU, known_tensors(optimizer));
  instruments::host_allocator::reset_peak();
  for (int64_t number = 2; number <= 3; ++number) {
    recorder.begin_step(number);
    recorder.begin_phase(Phase::data_loading);
    const TokenBatch batch =
        random_token_batch(workload.config, workload.batch, workload.seq, initializer);
    recorder.begin_phase(Phase::forward);
    at::Tensor loss = step.forward(batch);
    recorder.begin_phase(Phase::backward);
    step.backward(loss);
    recorder.mark_gradients(optimizer.parameters());
    loss.reset();
    recorder.begin_phase(Phase::optimizer);
    step.update();
    optimizer.clear_gradients();
    recorder.end_step();
  }
  result.allocator_peak = read().peak_bytes;
  result.recording = recorder.finish();
  result.memory = analyze_memory(result.recording, workload, std::nullopt);
  return result;
}

ModelConfig config() {
  return ModelConfig({.vocab_size = 300,
                      .hidden_dim = 64,
                      .n_layers = 3,
                      .n_heads = 8,
                      .n_kv_heads = 4,
                      .intermediate_dim = 96});
}

int64_t sum(const Json& parts) {
  int64_t bytes = 0;
  for (const auto& [name, part] : parts.items()) bytes += part.get<int64_t>();
  return bytes;
}

class MemoryStepTest : public ::testing::TestWithParam<Workload> {};

TEST_P(MemoryStepTest, AgreesWithTheAllocatorAndThePredictionToTheByte) {
  const Recorded recorded = record(GetParam());
  const Json& memory = recorded.memory;
  const Json& parts = memory["breakdown_at_peak"];
  EXPECT_EQ(memory["peak_bytes"], recorded.allocator_peak);
  EXPECT_EQ(sum(parts), recorded.allocator_peak);
  const auto after = memory["live_bytes_after_steps"];
  EXPECT_EQ(after[0], after[1]) << "a step that leaves memory behind";

  const auto predicted = predict_step_memory(GetParam(), c10::kCPU);
  EXPECT_EQ(parts["parameters"], predicted.weights);
  EXPECT_EQ(parts["optimizer_states"], predicted.optimizer_state);
  const Json& activations = memory["component_activation_bytes"];
  EXPECT_EQ(sum(activations), predicted.activations);
  EXPECT_FALSE(activations.contains("other")) << activations.dump();
  EXPECT_TRUE(activations.contains("attention/core"));
  int64_t gradients = 0;
  for (const TensorMark& mark : recorded.recording.marks) gradients += mark.tensor.bytes;
  EXPECT_EQ(gradients, 2 * predicted.gradients) << "of two steps";
}

INSTANTIATE_TEST_SUITE_P(All, MemoryStepTest,
                         ::testing::Values(Workload{config(), Variant(), Dtype::f32, 2, 32},
                                           Workload{config(), Variant(), Dtype::bf16, 3, 48},
                                           Workload{config(), Variant(), Dtype::amp_bf16, 2, 32},
                                           Workload{config(), Variant::fused(), Dtype::f32, 2, 32},
                                           Workload{
                                               config(),
                                               Variant({Switch::fused_attention, Switch::fused_norm,
                                                        Switch::fused_rotary, Switch::fused_loss,
                                                        Switch::foreach_adamw}),
                                               Dtype::f32, 2, 32}),
                         ::tinyllama::testing::kNamedByParameter);

// With scores larger than all else the peak and its parts can be written down.
TEST(MemoryStepPeakTest, AttentionScoresAreThoseOfEveryLayer) {
  const Workload workload{config(), Variant(), Dtype::f32, 2, 128};
  const Json memory = record(workload).memory;
  const int64_t matrix = 2 * 8 * 128 * 128 * 4;
  EXPECT_EQ(memory["peak_phase"], "backward");
  EXPECT_EQ(memory["peak_component"], "attention/core");
  EXPECT_EQ(memory["breakdown_at_peak"]["attention_scores"], 3 * matrix);
  EXPECT_EQ(memory["largest_tensors"][0]["bytes"], matrix);
  EXPECT_EQ(memory["largest_spike"]["bytes"], matrix);
  std::map<std::string, int64_t> counts;
  for (const Json& tensor : memory["largest_tensors"])
    counts[tensor["name"]] += tensor["count"].get<int64_t>();
  EXPECT_EQ(counts["attention_scores [B,H,S,S]"], 3);
  EXPECT_EQ(counts["attention_probabilities [B,H,S,S]"], 3);
  EXPECT_EQ(counts["gradient of attention_scores [B,H,S,S]"], 3);
  EXPECT_EQ(counts["gradient of attention_probabilities [B,H,S,S]"], 3);
}

TEST(MemoryStepPeakTest, IsThePredictedOne) {
  struct Case {
    int64_t seq;
    std::string component;
  };
  for (const Case& at :
       {Case{16, "optimizer"}, Case{64, "loss/cross_entropy"}, Case{128, "attention/core"}}) {
    const Workload workload{config(), Variant(), Dtype::f32, 2, at.seq};
    const Recorded recorded = record(workload);
    EXPECT_EQ(recorded.memory["peak_component"], at.component) << "sequence " << at.seq;
    EXPECT_EQ(recorded.memory["peak_bytes"].get<int64_t>() - recorded.other_bytes,
              predict_step_memory(workload, c10::kCPU).peak())
        << "sequence " << at.seq;
  }
}

TEST(PredictedMemoryOfAGpuTest, DoesNotDependOnTheThreadsOfThisHost) {
  const int before = at::get_num_threads();
  // On a CPU each thread has sums of its own for the gradient of the weight.
  const auto backward_peak = [](int threads, c10::DeviceType device) {
    at::set_num_threads(threads);
    const auto build = [] {
      const auto leaf = [](c10::IntArrayRef shape) {
        return at::empty(shape, at::TensorOptions(c10::ScalarType::Float).device(c10::kMeta))
            .requires_grad_();
      };
      const NamedTensors leaves = {{"x", leaf({4096, 512})}, {"weight", leaf({512})}};
      const auto iteration = [leaves] {
        kernels::rms_norm(leaves[0].second, leaves[1].second, 1e-5).sum().backward();
      };
      return WorkOnMeta{iteration, leaves, {}};
    };
    return predict_memory(device, build).peaks.backward;
  };
  EXPECT_EQ(backward_peak(1, c10::kCUDA), backward_peak(64, c10::kCUDA));
  EXPECT_LT(backward_peak(1, c10::kCPU), backward_peak(64, c10::kCPU));
  at::set_num_threads(before);
}

TEST(PredictedMemoryOfAGpuTest, GradientsAreSummedInPlaceAsOnACpu) {
  constexpr int64_t bytes = 4 * kMiB;
  const auto backward_peak = [](c10::DeviceType device) {
    return predict_memory(device,
                          [] {
                            const auto tensor = [] {
                              return at::empty(
                                  {bytes / 4},
                                  at::TensorOptions(c10::ScalarType::Float).device(c10::kMeta));
                            };
                            const NamedTensors leaves = {{"x", tensor().requires_grad_()}};
                            const std::vector<at::Tensor> factors = {tensor(), tensor(), tensor()};
                            const auto iteration = [leaves, factors] {
                              const at::Tensor loss = [&] {
                                const at::Tensor twice = leaves.front().second * factors[0];
                                return (twice * factors[1] + twice * factors[2]).sum();
                              }();
                              loss.backward();
                            };
                            return WorkOnMeta{iteration, leaves, {}};
                          })
        .peaks.backward;
  };
  // The leaf, its factors, and two gradients, one of which becomes their sum.
  EXPECT_LT(backward_peak(c10::kCPU), 6 * bytes + kMiB);
  EXPECT_LT(backward_peak(c10::kCUDA), 6 * bytes + kMiB);
}

TEST(PredictedMemoryOfAGpuTest, HoldsTheLogitsOfItsChunksOfTheLoss) {
  constexpr int64_t T = 4096, D = 8, V = 2048;
  const auto peak = [](c10::DeviceType device) {
    return predict_memory(
               device,
               [] {
                 const auto options = at::TensorOptions(c10::ScalarType::Float).device(c10::kMeta);
                 const at::Tensor x = at::empty({1, T, D}, options).requires_grad_();
                 const at::Tensor weight = at::empty({V, D}, options).requires_grad_();
                 const at::Tensor targets = at::empty({1, T}, options.dtype(c10::ScalarType::Long));
                 const NamedTensors leaves = {{"x", x}, {"weight", weight}};
                 const auto iteration = [=] {
                   fused_loss(x, weight, targets, Gemm(Variant())).backward();
                 };
                 return WorkOnMeta{iteration, leaves, {}};
               })
        .peak();
  };
  const int64_t chunk = fused_loss_chunk(T, V, c10::kCPU);
  ASSERT_EQ(fused_loss_chunk(T, V, c10::kCUDA), T);
  const auto difference = static_cast<double>(peak(c10::kCUDA) - peak(c10::kCPU));
  const auto logits = static_cast<double>((T - chunk) * V * 4);
  EXPECT_NEAR(difference / logits, 1, 0.02);
}

TEST(MemoryStepPeakTest, CheckpointsKeepOneTensorALayer) {
  const Workload workload{config(), Variant({Switch::checkpoint}), Dtype::f32, 2, 64};
  const Recorded recorded = record(workload);
  EXPECT_EQ(sum(recorded.memory["component_activation_bytes"]),
            predict_step_memory(workload, c10::kCPU).activations);
  EXPECT_EQ(recorded.memory["breakdown_at_peak"]["attention_scores"], 0);
}

}  // namespace
}  // namespace tinyllama::training

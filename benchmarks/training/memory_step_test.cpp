// The analysis of real steps against the predicted memory and the allocator.
#include <gtest/gtest.h>

#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/memory_prediction.hpp"
#include "benchmarks/training/memory_analysis.hpp"
#include "benchmarks/training/memory_recorder.hpp"
#include "benchmarks/training/memory_timeline.hpp"
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

struct Recorded {
  MemoryRecording recording;
  Json memory;
  int64_t foreign_bytes = 0;   // alive before the model
  int64_t allocator_peak = 0;  // highest live bytes that the allocator itself counted
};

/// Two steps, as the training program runs them.
Recorded record(const Workload& workload) {
  instruments::host_allocator::install();
  Recorded result;
  result.foreign_bytes = read().live_bytes;
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

int64_t bytes_of(const std::vector<KnownTensor>& tensors, TensorKind kind) {
  int64_t bytes = 0;
  for (const KnownTensor& tensor : tensors) bytes += tensor.kind == kind ? tensor.bytes : 0;
  return bytes;
}

class MemoryStepTest : public ::testing::TestWithParam<Workload> {};

TEST_P(MemoryStepTest, AgreesWithTheAllocatorToTheByte) {
  const Recorded recorded = record(GetParam());
  EXPECT_EQ(recorded.memory["peak_bytes"], recorded.allocator_peak);
  EXPECT_EQ(sum(recorded.memory["breakdown_at_peak"]), recorded.allocator_peak);
  const auto after = recorded.memory["live_bytes_after_steps"];
  EXPECT_EQ(after[0], after[1]) << "a step that leaves memory behind";
}

TEST_P(MemoryStepTest, BreakdownAgreesWithThePredictionToTheByte) {
  const Recorded recorded = record(GetParam());
  const auto predicted = instruments::predict_step_memory(GetParam(), c10::kCPU);
  const Json& parts = recorded.memory["breakdown_at_peak"];
  EXPECT_EQ(parts["parameters"], predicted.weights);
  EXPECT_EQ(parts["optimizer_states"], predicted.optimizer_state);
  EXPECT_EQ(sum(recorded.memory["component_activation_bytes"]), predicted.activations);
  std::vector<KnownTensor> gradients;
  for (const TensorMark& mark : recorded.recording.marks) gradients.push_back(mark.tensor);
  EXPECT_EQ(bytes_of(gradients, TensorKind::gradient), 2 * predicted.gradients) << "of two steps";
}

TEST_P(MemoryStepTest, EveryActivationHasAComponent) {
  const Json activations = record(GetParam()).memory["component_activation_bytes"];
  EXPECT_FALSE(activations.contains("other")) << activations.dump();
  EXPECT_TRUE(activations.contains("attention/core"));
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
    EXPECT_EQ(recorded.memory["peak_bytes"].get<int64_t>() - recorded.foreign_bytes,
              instruments::predict_step_memory(workload, c10::kCPU).peak())
        << "sequence " << at.seq;
  }
}

TEST(MemoryStepPeakTest, CheckpointsKeepOneTensorALayer) {
  const Workload workload{config(), Variant({Switch::checkpoint}), Dtype::f32, 2, 64};
  const Recorded recorded = record(workload);
  EXPECT_EQ(sum(recorded.memory["component_activation_bytes"]),
            instruments::predict_step_memory(workload, c10::kCPU).activations);
  EXPECT_EQ(recorded.memory["breakdown_at_peak"]["attention_scores"], 0);
}

}  // namespace
}  // namespace tinyllama::training

#include "benchmarks/training/memory_analysis.hpp"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>

#include "benchmarks/training/memory_testing.hpp"

namespace tinyllama::training {
namespace {

using testing::RecordingBuilder;
using Json = nlohmann::ordered_json;

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

TEST(MemoryAnalysisTest, PeaksOfTheStepAndOfEachPhase) {
  const Json memory = analysis_of_one_step();
  EXPECT_EQ(memory["first_step"], 2);
  EXPECT_EQ(memory["last_step"], 2);
  EXPECT_EQ(memory["baseline_bytes"], 1000);
  EXPECT_EQ(memory["forward_peak_bytes"], 1000 + 256 + 256 + 320 + 50);
  EXPECT_EQ(memory["peak_bytes"], 1000 + 256 + 256 + 320 + 400 + 320);
  EXPECT_EQ(memory["backward_peak_bytes"], memory["peak_bytes"]);
  EXPECT_EQ(memory["optimizer_peak_bytes"], 1000 + 400 + 70);
  EXPECT_EQ(memory["live_bytes_after_steps"], Json::array({1000}));
}

TEST(MemoryAnalysisTest, SaysWhenAndWhereThePeakIs) {
  const Json memory = analysis_of_one_step();
  EXPECT_EQ(memory["peak_phase"], "backward");
  EXPECT_EQ(memory["peak_component"], "loss/lm_head");
  EXPECT_EQ(memory["peak_operator"], "aten::mm");
  EXPECT_DOUBLE_EQ(memory["peak_seconds"].get<double>(), 4) << "after the step's begin at 1";
}

TEST(MemoryAnalysisTest, TheAverageIsWeightedByTime) {
  const Json memory = analysis_of_one_step();
  // What lives in each of the five seconds.
  const double average = (1512 + 1832 + 1832 + 2232 + 1470) / 5.0;
  EXPECT_DOUBLE_EQ(memory["average_bytes"].get<double>(), average);
  EXPECT_DOUBLE_EQ(memory["peak_to_average"].get<double>(), 2552 / average);
}

TEST(MemoryAnalysisTest, BreakdownAddsUpToThePeak) {
  const Json memory = analysis_of_one_step();
  const Json& parts = memory["breakdown_at_peak"];
  EXPECT_EQ(parts["parameters"], 400);
  EXPECT_EQ(parts["optimizer_states"], 500);
  EXPECT_EQ(parts["gradients"], 400);
  // The copy of the queries is as large as the scores.
  EXPECT_EQ(parts["attention_scores"], 256);
  EXPECT_EQ(parts["activations"], 256) << "the logits are gone";
  // 100 of before that nobody knows, and two gradients on their way.
  EXPECT_EQ(parts["temporary"], 100 + 320 + 320);
  int64_t sum = 0;
  for (const auto& [name, bytes] : parts.items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, memory["peak_bytes"].get<int64_t>());
}

TEST(MemoryAnalysisTest, ActivationsByComponentAreThoseThatOutliveTheForward) {
  const Json memory = analysis_of_one_step();
  EXPECT_EQ(memory["component_activation_bytes"],
            (Json{{"attention/core", 512}, {"loss/lm_head", 320}}));
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

TEST(MemoryAnalysisTest, FragmentationOfAGpuIsWhatItsAllocatorHoldsAtThePeak) {
  RecordingBuilder recording;
  recording.on_gpu(4096).step(1).phase(Phase::forward).allocate(1, 1024).release(1, 1024);
  const Json memory = analyze_memory(recording.finish(), workload(), 12345);
  EXPECT_EQ(memory["fragmentation"]["allocated_bytes"], 1024);
  EXPECT_EQ(memory["fragmentation"]["held_bytes"], 4096);
  EXPECT_EQ(memory["fragmentation"]["percent"], 75);
}

TEST(MemoryAnalysisTest, FragmentationOfACpuIsItsResidentSetWhereMostLives) {
  RecordingBuilder recording;
  recording.step(1).phase(Phase::forward).allocate(1, 600).resident(1800);
  recording.phase(Phase::backward).release(1, 600).resident(5000);
  const Json with = analyze_memory(recording.finish(), workload(), 1000)["fragmentation"];
  EXPECT_EQ(with["allocated_bytes"], 600);
  EXPECT_EQ(with["held_bytes"], 800);
  EXPECT_EQ(with["percent"], 25);
  const Json without =
      analyze_memory(recording.finish(), workload(), std::nullopt)["fragmentation"];
  EXPECT_EQ(without["held_bytes"], 1800);
  EXPECT_NE(with["definition"], without["definition"]);
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

}  // namespace
}  // namespace tinyllama::training

#include "benchmarks/training/operator_recorder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "benchmarks/training/testing.hpp"
#include "benchmarks/training/trainer.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::training {
namespace {

using testing::small_options;
using testing::TrainingParts;
using ::tinyllama::testing::TemporaryFolder;

struct Recorded {
  Json operators;
  Json trace;
  std::vector<std::string> files;
};

Recorded record(const TrainOptions& options) {
  const TemporaryFolder folder;
  TrainingParts parts(options);
  OperatorRecorder recorder(options, parts.device, folder.path());
  Trainer trainer(options, parts.device, parts.state, *parts.data, {&recorder, {}});
  trainer.run();
  Recorded recorded{recorder.to_json(), nullptr, recorder.finish()};
  std::ifstream stream(folder.path() / "trace_step_5_6.json");
  recorded.trace = Json::parse(stream);
  return recorded;
}

double percent_of(const std::string& name, const Json& operators) {
  for (const Json& component : operators.at("components"))
    if (component.at("name") == name) return component.at("percent");
  ADD_FAILURE() << name << " is no component";
  return 0;
}

class OperatorRecorderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { recorded = std::make_unique<Recorded>(record(small_options())); }
  static void TearDownTestSuite() { recorded.reset(); }
  static const Json& operators() { return recorded->operators; }
  static int64_t calls(const std::string& name) {
    int64_t sum = 0;
    for (const Json& row : operators().at("table"))
      if (row.at("name") == name) sum += row.at("calls").get<int64_t>();
    return sum;
  }
  inline static std::unique_ptr<Recorded> recorded;
};

TEST_F(OperatorRecorderTest, CountsTheProjectionsOfTheModel) {
  // Q, K, V, O, gate, up and down in each of two blocks, and the LM head.
  EXPECT_DOUBLE_EQ(operators().at("linear_projections_per_step"), 2 * 7 + 1);
  EXPECT_EQ(operators().at("steps"), 2);
  EXPECT_EQ(operators().at("first_step"), 5);
  EXPECT_EQ(operators().at("last_step"), 6);
  // Each projection has two products more in backward; scores and values are batched products.
  EXPECT_EQ(calls("aten::mm"), 2 * 3 * (2 * 7 + 1));
  EXPECT_EQ(calls("aten::bmm"), 2 * 3 * 2 * 2);
}

TEST_F(OperatorRecorderTest, EveryPartOfTheModelHasForwardAndBackwardTime) {
  std::map<std::string, Json> components;
  double percent = 0;
  for (const Json& component : operators().at("components")) {
    components[component.at("name")] = component;
    percent += component.at("percent").get<double>();
  }
  EXPECT_NEAR(percent, 100, 1e-6);
  for (const char* name : {"embedding", "rms_norm", "attention/qkv_proj", "attention/rotary",
                           "attention/core", "attention/o_proj", "ffn/gate_up_proj", "ffn/swiglu",
                           "ffn/down_proj", "loss/lm_head", "loss/cross_entropy"}) {
    ASSERT_TRUE(components.contains(name)) << name;
    EXPECT_GT(components[name].at("forward_seconds"), 0) << name;
    EXPECT_GT(components[name].at("backward_seconds"), 0) << name;
  }
  EXPECT_GT(components["optimizer"].at("forward_seconds"), 0);
  for (const auto& [name, component] : components) EXPECT_NE(name.find("ProfilerStep"), 0U);
  EXPECT_FALSE(components.contains("forward"));
  EXPECT_FALSE(components.contains("backward"));
}

TEST_F(OperatorRecorderTest, WhatIsLeftWithoutANameIsTheEnginesOwnWork) {
  // A pause that a busy machine makes in the midst of that work counts with it, but not in every
  // recording.
  double other = percent_of("other", operators());
  for (int again = 0; again < 4 && other >= 30; ++again)
    other = percent_of("other", record(small_options()).operators);
  EXPECT_LT(other, 30);
}

TEST_F(OperatorRecorderTest, OwnTimesAddUpToSharesOfAHundred) {
  double share = 0;
  for (const Json& row : operators().at("table")) {
    share += row.at("share_percent").get<double>();
    EXPECT_GE(row.at("cpu_self_seconds"), 0) << row.dump();
    EXPECT_LE(row.at("cpu_self_seconds"), row.at("cpu_total_seconds")) << row.dump();
    EXPECT_TRUE(row.at("device_self_seconds").is_null());
  }
  EXPECT_NEAR(share, 100, 1e-6);
  const double overhead = operators().at("launch_overhead_percent");
  EXPECT_GT(overhead, 0);
  EXPECT_LT(overhead, 100);
}

TEST_F(OperatorRecorderTest, RowsHaveShapesStacksAndMemory) {
  bool found = false;
  for (const Json& row : operators().at("table")) {
    if (row.at("name") != "aten::_softmax") continue;
    found = true;
    EXPECT_NE(row.at("input_shapes").get<std::string>().find("[4, 16, 8]"), std::string::npos);
    const auto stack = row.at("stack").get<std::vector<std::string>>();
    EXPECT_NE(std::find(stack.begin(), stack.end(), "attention/core"), stack.end());
    // Both steps and both blocks are in one row.
    EXPECT_EQ(row.at("calls"), 2 * 2);
    for (const auto& name : stack) EXPECT_FALSE(name.starts_with("ProfilerStep#")) << name;
    // [B KV, G S, S] float32 in each call
    EXPECT_EQ(row.at("self_memory_bytes"), row.at("calls").get<int64_t>() * 4 * 16 * 8 * 4);
  }
  EXPECT_TRUE(found);
}

TEST(OperatorRecorderEvaluationTest, AnEvaluationIsNoPartOfTheModelsComponents) {
  TrainOptions options = small_options();
  options.eval_interval = 1;
  options.eval_iters = 3;
  const Recorded recorded = record(options);
  EXPECT_DOUBLE_EQ(recorded.operators.at("linear_projections_per_step"), 2 * 7 + 1);
  double evaluation = 0;
  for (const Json& component : recorded.operators.at("components")) {
    if (component.at("name") == "evaluation") evaluation = component.at("forward_seconds");
  }
  EXPECT_GT(evaluation, 0);
}

TEST(OperatorRecorderInterruptTest, AnEarlierTraceOfTheSameNameIsLeftAlone) {
  const TemporaryFolder folder;
  const auto earlier = folder.path() / "trace_step_5_6.json";
  std::ofstream(earlier) << "earlier";
  const TrainOptions options = small_options();
  TrainingParts parts(options);
  OperatorRecorder recorder(options, parts.device, folder.path());
  recorder.begin_step(5);
  parts.state.step.run(std::vector<TokenBatch>{parts.data->train_batch(5, 0)});
  recorder.end_step();
  EXPECT_EQ(recorder.finish().front(), "trace_step_5_5.json");
  std::string text;
  std::ifstream(earlier) >> text;
  EXPECT_EQ(text, "earlier");
}

TEST_F(OperatorRecorderTest, EachArrowFromForwardToBackwardHasItsOwnNumber) {
  std::map<int64_t, std::map<std::string, int>> ends;
  for (const Json& event : recorded->trace.at("traceEvents")) {
    if (event.value("cat", "") == "fwdbwd")
      ++ends[event.at("id").get<int64_t>()][event.at("ph").get<std::string>()];
  }
  ASSERT_FALSE(ends.empty());
  for (const auto& [id, count] : ends)
    EXPECT_EQ(count, (std::map<std::string, int>{{"f", 1}, {"s", 1}})) << "arrow " << id;
}

TEST_F(OperatorRecorderTest, TheTraceHoldsBothStepsInTheOrderOfTime) {
  std::map<std::string, double> begins;
  for (const Json& event : recorded->trace.at("traceEvents")) {
    const std::string name = event.value("name", "");
    if (name.starts_with("ProfilerStep#")) begins[name] = event.at("ts").get<double>();
  }
  ASSERT_EQ(begins.size(), 2U);
  EXPECT_LT(begins.at("ProfilerStep#5"), begins.at("ProfilerStep#6"));
  EXPECT_TRUE(recorded->trace.contains("schemaVersion"));
  ASSERT_EQ(recorded->files.size(), 2U);
  EXPECT_EQ(recorded->files[0], "trace_step_5_6.json");
  EXPECT_TRUE(recorded->files[1].ends_with(".pt.trace.json"));
}

}  // namespace
}  // namespace tinyllama::training

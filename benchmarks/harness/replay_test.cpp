#include "benchmarks/harness/replay.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "benchmarks/harness/testing.hpp"
#include "benchmarks/harness/trace.hpp"

namespace tinyllama::harness {
namespace {

using Json = nlohmann::json;

const char* const kCorpus = TINY_LLAMA_SOURCE_DIR "/tests/fuzzing/corpus/trace/";

Json tensor_input(const std::string& type) {
  return fmt::format("Tensor({})", type);
}

// A node of an execution trace, whose inputs are tensors of these shapes.
Json node(int64_t id, int64_t caller, const std::string& name, const Json& shapes,
          const Json& strides = Json::array(), const std::string& type = "float") {
  Json types = Json::array();
  Json values = Json::array();
  for (size_t i = 0; i < shapes.size(); ++i) {
    types.push_back(tensor_input(type));
    values.push_back(Json::array());
  }
  return {
      {"id", id},
      {"name", name},
      {"ctrl_deps", caller},
      {"inputs", {{"shapes", shapes}, {"strides", strides}, {"types", types}, {"values", values}}}};
}

class ReplayTest : public ::testing::Test {
 protected:
  std::string write(const std::string& text) const {
    folder.write("trace.json", text);
    return (folder / "trace.json").string();
  }
  std::string write_nodes(const Json& nodes) const {
    return write(Json{{"schema", "1.1.1-chakra.0.0.4"}, {"nodes", nodes}}.dump());
  }
  ReplayPlan plan_of(const Json& nodes) const {
    return plan_replay(read_recorded_trace(write_nodes(nodes)));
  }
  static std::vector<std::string> names(const ReplayPlan& plan) {
    std::vector<std::string> found;
    for (const ReplayCase& replay : plan.cases)
      found.push_back(fmt::format("{} {}", replay.count, replay.name));
    return found;
  }
  std::string refusal(const std::string& text) const {
    const std::string file = write(text);
    const std::string message =
        testing::error_of<std::invalid_argument>([&] { read_recorded_trace(file); });
    EXPECT_TRUE(message.starts_with(file + ": ")) << message;
    return message;
  }

  testing::TemporaryFolder folder;
  instruments::Device cpu = instruments::Device::select("cpu");
};

using Names = std::vector<std::string>;

TEST_F(ReplayTest, DistinctGemmsAreCountedByShapeTypeAndLayout) {
  const Json square = Json::parse("[[4, 8], [8, 6]]");
  const ReplayPlan plan = plan_of(
      {node(1, 0, "aten::mm", square, Json::parse("[[8, 1], [6, 1]]")),
       node(2, 0, "aten::mm", square, Json::parse("[[8, 1], [1, 8]]")),
       node(3, 0, "aten::mm", square), node(4, 0, "aten::mm", square, {}, "c10::Half"),
       node(5, 0, "aten::mm", square, Json::parse("[[16, 1], [6, 1]]")),
       node(6, 0, "aten::bmm", Json::parse("[[2, 4, 8], [2, 8, 6]]")),
       node(7, 0, "aten::addmm", Json::parse("[[6], [4, 8], [8, 6]]")),
       node(8, 0, "aten::mul", Json::parse("[[4], [4]]")),
       node(9, 0, "aten::view", Json::parse("[[4]]")), node(10, 8, "aten::empty", Json::array()),
       node(11, 8, "aten::add", Json::parse("[[4], [4]]"))});
  EXPECT_EQ(names(plan), (Names{"2 replay/mm/f32/4x6x8/nn", "1 replay/mm/f32/4x6x8/nt",
                                "1 replay/mm/f16/4x6x8/nn", "1 replay/mm/f32/4x6x8/[16,1],n",
                                "1 replay/bmm/f32/2x4x6x8/nn", "1 replay/addmm/f32/4x6x8/nn/+6"}));
  EXPECT_EQ(plan.cases[0].flops, 2 * 4 * 6 * 8);
  EXPECT_EQ(plan.cases[4].flops, 2 * 2 * 4 * 6 * 8);
  EXPECT_EQ(plan.not_replayed, (std::map<std::string, int64_t>{{"aten::mul", 1}}));
  EXPECT_EQ(plan.without_computing, (std::map<std::string, int64_t>{{"aten::view", 1}}));
}

TEST_F(ReplayTest, WhatAReplayedOperatorCallsIsPartOfIt) {
  const ReplayPlan plan = plan_of({node(1, 0, "aten::linear", Json::parse("[[2, 4, 8], [6, 8]]")),
                                   node(2, 1, "aten::t", Json::parse("[[6, 8]]")),
                                   node(3, 0, "aten::matmul", Json::parse("[[8, 8], [8, 6]]")),
                                   node(4, 3, "aten::mm", Json::parse("[[8, 8], [8, 6]]"))});
  EXPECT_EQ(names(plan), (Names{"1 replay/linear/f32/8x6x8/nn", "1 replay/mm/f32/8x6x8/nn"}));
  EXPECT_TRUE(plan.not_replayed.empty() && plan.without_computing.empty());
}

TEST_F(ReplayTest, BothFormatsAreRead) {
  const RecordedTrace chakra = read_recorded_trace(std::string(kCorpus) + "chakra");
  EXPECT_EQ(chakra.format, "Chakra 1.1.1-chakra.0.0.4");
  EXPECT_EQ(chakra.seconds, 0);
  EXPECT_EQ(names(plan_replay(chakra)),
            (Names{"1 replay/linear/f32/8x8x8/nn", "1 replay/causal_attention/bf16/1x4x2x8/kv:1"}));
  const RecordedTrace chrome = read_recorded_trace(std::string(kCorpus) + "chrome");
  EXPECT_EQ(chrome.format, "Chrome");
  EXPECT_NEAR(chrome.seconds, (145.25 - 10.5) * 1e-6, 1e-12);
  const ReplayPlan plan = plan_replay(chrome);
  EXPECT_EQ(names(plan), (Names{"1 replay/linear/f32/8x8x8/nn",
                                "1 replay/attention/f16/1x4x4x8/kv:2x4/causal/"
                                "[128,8,32,1],[64,8,16,1],[64,8,16,1]",
                                "1 replay/layer_norm/f64/2x8"}));
  EXPECT_NEAR(plan.cases[0].recorded_seconds, 20e-6, 1e-12);
  EXPECT_EQ(plan.cases[1].flops, 4 * 4 * 8 * (4 * 5 / 2));
}

TEST_F(ReplayTest, EveryCaseIsTimed) {
  Options options;
  options.timing.min_seconds = 1e-4;
  options.timing.warm_up_seconds = 0;
  options.timing.repetitions = 2;
  for (const char* name : {"chakra", "chrome"}) {
    const ReplayPlan plan = plan_replay(read_recorded_trace(std::string(kCorpus) + name));
    for (const ReplayCase& replay : plan.cases) {
      const ReplayRow row = time_replay(replay, options, cpu);
      EXPECT_EQ(row.failure, "") << replay.name;
      EXPECT_GT(row.seconds, 0);
      EXPECT_EQ(row.repetitions.size(), 2U);
    }
  }
  const ReplayPlan plan = plan_of(
      Json::array({node(1, 0, "aten::mm", Json::parse("[[1048576, 65536], [65536, 1048576]]"))}));
  options.memory_limit_bytes = int64_t{1} << 30;
  EXPECT_CONTAINS(time_replay(plan.cases[0], options, cpu).failure, "do not fit into 1.00 GiB");
}

// What --execution-trace and --trace write, replayed.
TEST_F(ReplayTest, TracesOfThisProgramAreReplayed) {
  const Component component = testing::linear_component();
  const Case test_case = testing::small_case(component, Pass::forward_backward);
  const auto item = component.build({test_case.workload, test_case.pass, 42, cpu.torch()});
  const std::string into = folder.path().string();
  ASSERT_EQ(write_trace(cpu, *item, "a", into), "");
  ASSERT_EQ(write_execution_trace(cpu, *item, "a", into), "");
  const Names expected = {"1 replay/mm/f32/8x8x8/nt", "1 replay/mm/f32/8x8x8/tn",
                          "1 replay/mm/f32/8x8x8/nn"};
  for (const char* file : {"a.json", "a.et.json"}) {
    Names found = names(plan_replay(read_recorded_trace(folder / file)));
    std::ranges::sort(found);
    Names sorted = expected;
    std::ranges::sort(sorted);
    EXPECT_EQ(found, sorted) << file;
  }
}

TEST_F(ReplayTest, BadTracesAreNamedWithWhatIsWrong) {
  const std::string whole = ::tinyllama::testing::read_bytes(std::string(kCorpus) + "chakra");
  EXPECT_CONTAINS(refusal(whole.substr(0, whole.size() / 2)), "is no JSON, or cut off");
  EXPECT_CONTAINS(refusal("no trace"), "is no JSON, or cut off");
  EXPECT_CONTAINS(refusal("[1]"), "which is a JSON object");
  EXPECT_CONTAINS(refusal("{}"), "has neither \"schema\" and \"nodes\"");
  EXPECT_CONTAINS(refusal(R"({"schema": "2.0", "nodes": []})"), "is of schema \"2.0\"");
  EXPECT_CONTAINS(refusal(R"({"schema": "1.1.1-chakra.0.0.4", "nodes": []})"), "no operators");
  EXPECT_CONTAINS(refusal(R"({"traceEvents": []})"), "holds no operators");
  EXPECT_CONTAINS(refusal(R"({"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1}]})"),
                  "nodes[0]: lacks \"ctrl_deps\"");
  EXPECT_CONTAINS(refusal(R"({"traceEvents": [{"cat": "cpu_op", "name": "aten::mm", "ts": 1}]})"),
                  "traceEvents[0]: lacks \"dur\"");
  EXPECT_CONTAINS(
      refusal(R"({"traceEvents": [{"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}]})"),
      "have no shapes: record it with record_shapes=True");
  EXPECT_CONTAINS(refusal(R"({"schema": "1.1.1-chakra.0.0.4", "nodes": [)" +
                          node(1, 0, "aten::mm", Json::parse("[[-4, 8], [8, 6]]")).dump() + "]}"),
                  "nodes[0]: a size or stride -4");
  std::ofstream(folder / "empty").close();
  EXPECT_CONTAINS(
      testing::error_of<std::invalid_argument>([&] { read_recorded_trace(folder / "empty"); }),
      "is empty");
  EXPECT_CONTAINS(
      testing::error_of<std::invalid_argument>([&] { read_recorded_trace(folder / "absent"); }),
      "absent");
}

TEST_F(ReplayTest, ShapesThatDoNotFitTogetherAreNamed) {
  const auto refused = [&](const std::string& name, const char* shapes) {
    return testing::error_of<std::invalid_argument>(
        [&] { plan_of(Json::array({node(1, 0, name, Json::parse(shapes))})); });
  };
  EXPECT_EQ(refused("aten::mm", "[[4, 8], [9, 6]]"),
            "aten::mm of [4, 8] x [9, 6]: the factors do not fit together");
  EXPECT_CONTAINS(refused("aten::bmm", "[[3, 4, 8], [2, 8, 6]]"), "the batches do not fit");
  EXPECT_CONTAINS(refused("aten::mm", "[[4]]"), "must have two factors");
  EXPECT_CONTAINS(refused("aten::mm", "[[1099511627776, 2], [2, 2]]"), "has more than");
}

}  // namespace
}  // namespace tinyllama::harness

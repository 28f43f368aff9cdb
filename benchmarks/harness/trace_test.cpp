#include "benchmarks/harness/trace.hpp"

#include <gtest/gtest.h>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::harness {
namespace {

using Json = nlohmann::ordered_json;

class TraceTest : public ::testing::Test {
 protected:
  std::unique_ptr<WorkItem> build() const {
    return component.build({test_case.workload, test_case.pass, 42, cpu.torch()});
  }
  std::string write(const std::filesystem::path& into) const {
    const auto item = build();
    return write_trace(cpu, *item, test_case.name(), into.string());
  }

  instruments::Device cpu = instruments::Device::select("cpu");
  Component component = testing::linear_component();
  Case test_case = testing::small_case(component, Pass::backward);
  testing::TemporaryFolder folder;
};

TEST_F(TraceTest, HoldsTheOperatorsOfOneIteration) {
  ASSERT_EQ(write(folder.path()), "");
  ASSERT_EQ(write(folder.path()), "") << "the file is there already";
  const std::string name = "linear.backward.baseline.custom.f32.batch-2.seq-4.json";
  EXPECT_EQ(folder.entries(), std::vector<std::string>{name});
  std::ifstream stream(folder / name.c_str());
  const Json trace = Json::parse(stream);
  EXPECT_EQ(trace.at("traceName"), name);
  std::vector<std::string> names;
  for (const Json& event : trace.at("traceEvents")) names.push_back(event.value("name", ""));
  EXPECT_EQ(std::ranges::count(names, test_case.name()), 1);
  EXPECT_EQ(std::ranges::count(names, "aten::mm"), 2) << "of the backward, not of its forward";
}

TEST_F(TraceTest, AFaultIsSaidAndLeavesNothing) {
  EXPECT_CONTAINS(write(folder / "absent"), kNoTrace);
  Component broken = component;
  struct Throws : WorkItem {
    void prepare() override {}
    void run() override { throw std::runtime_error("out of memory\nframe #0"); }
    NamedTensors results() const override { return {}; }
  } item;
  EXPECT_EQ(write_trace(cpu, item, "a", folder.path().string()), "no trace: out of memory");
  EXPECT_TRUE(folder.entries().empty());
  EXPECT_EQ(write(folder.path()), "") << "the profiler is free again";
}

TEST_F(TraceTest, AnExecutionTraceHoldsTheOperatorsWithTheirShapes) {
  const auto item = build();
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(write_execution_trace(cpu, *item, test_case.name(), folder.path().string()), "");
  const std::string name = "linear.backward.baseline.custom.f32.batch-2.seq-4.et.json";
  EXPECT_EQ(folder.entries(), std::vector<std::string>{name});
  std::ifstream stream(folder / name.c_str());
  const Json trace = Json::parse(stream);
  EXPECT_CONTAINS(trace.at("schema").get<std::string>(), "chakra");
  std::vector<Json> shapes;
  for (const Json& node : trace.at("nodes"))
    if (node.at("name") == "aten::mm") shapes.push_back(node.at("inputs").at("shapes"));
  // gradients of the input and of the weight
  const std::vector<Json> expected = {Json::parse("[[8, 8], [8, 8]]")};
  ASSERT_EQ(shapes.size(), 2U) << "of the backward, not of its forward";
  for (const Json& shape : shapes) EXPECT_EQ(shape, expected.front());
}

TEST_F(TraceTest, WithoutAnExecutionTraceThereIsAReasonAndTheNextOneIsWhole) {
  const auto item = build();
  const auto write = [&](WorkItem& work, const std::filesystem::path& into) {
    return write_execution_trace(cpu, work, test_case.name(), into.string());
  };
  EXPECT_CONTAINS(write(*item, folder / "absent"), kNoExecutionTrace);
  struct Throws : WorkItem {
    void prepare() override {}
    void run() override { throw std::runtime_error("out of memory\nframe #0"); }
    NamedTensors results() const override { return {}; }
  } broken;
  EXPECT_EQ(write(broken, folder.path()), "no execution trace: out of memory");
  EXPECT_TRUE(folder.entries().empty());
  EXPECT_EQ(write(*item, folder.path()), "") << "libtorch's observer is free again";
}

TEST_F(TraceTest, NamesAreSafe) {
  EXPECT_EQ(trace_file_name("ffn/train/qkv+sdpa/my size:1/f32"),
            "ffn.train.qkv+sdpa.my-size-1.f32.json");
}

}  // namespace
}  // namespace tinyllama::harness

#include "benchmarks/harness/dry_trace.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

using Json = nlohmann::json;

class DryTraceTest : public ::testing::Test {
 protected:
  DryTraceTest() {
    options.execution_trace_folder = folder.path().string();
    options.dry_run = true;
  }
  std::vector<Json> nodes_of(const Case& traced, const std::string& name) {
    write_dry_trace(options, traced);
    const auto file = folder / dry_trace_file_name(options, traced);
    const Json trace = Json::parse(::tinyllama::testing::read_bytes(file));
    std::vector<Json> found;
    for (const Json& node : trace.at("nodes"))
      if (node.at("name") == name) found.push_back(node);
    return found;
  }

  testing::TemporaryFolder folder;
  Options options;
  Component component = testing::linear_component();
  Case test_case = testing::small_case(component, Pass::forward_backward);
};

TEST_F(DryTraceTest, NeedsNeitherMemoryNorTime) {
  test_case.workload.batch = int64_t{1} << 20;
  test_case.workload.seq = 2048;  // 64 GiB an activation
  const std::vector<Json> gemms = nodes_of(test_case, "aten::mm");
  ASSERT_EQ(gemms.size(), 3U);
  EXPECT_EQ(gemms[0].at("inputs").at("shapes"), Json::parse("[[2147483648, 8], [8, 8]]"));
  EXPECT_EQ(folder.entries().size(), 1U);
}

// Without data all would be at the address 0.
TEST_F(DryTraceTest, StoragesAreToldApart) {
  const std::vector<Json> gemms = nodes_of(test_case, "aten::mm");
  ASSERT_EQ(gemms.size(), 3U);
  std::set<int64_t> storages;
  for (const Json& gemm : gemms) {
    for (const char* side : {"inputs", "outputs"})
      for (const Json& tensor : gemm.at(side).at("values"))
        storages.insert(tensor.at(1).get<int64_t>());
  }
  // x, the weight, y, its gradient and those of x and the weight
  EXPECT_EQ(storages.size(), 6U);
}

TEST_F(DryTraceTest, ARankReducesTheGradientsWithItsGroup) {
  options.world = 24;
  options.rank = 17;
  options.ranks = {.tensor = 4, .pipeline = 2};
  EXPECT_EQ(dry_trace_file_name(options, test_case),
            "linear.forward_backward.baseline.custom.f32.batch-2.seq-4.rank-17-of-24.et.json");
  const std::vector<Json> messages = nodes_of(test_case, "record_param_comms");
  ASSERT_EQ(messages.size(), 1U);
  std::map<std::string, Json> attributes;
  for (const Json& attribute : messages[0].at("attrs"))
    attributes[attribute.at("name")] = attribute.at("value");
  EXPECT_EQ(attributes.at("collective_name"), "allreduce");
  EXPECT_EQ(attributes.at("in_msg_nelems"), 8 * 8);
  EXPECT_EQ(attributes.at("pg_size"), 3);
  // of stage 1, which are 12 to 23, those that have the second share of the layers
  EXPECT_EQ(attributes.at("global_rank_start"), 13);
  EXPECT_EQ(attributes.at("global_rank_stride"), 4);
  EXPECT_EQ(nodes_of(test_case, "c10d::allreduce_").size(), 1U);
  const Case forward = testing::small_case(component, Pass::forward);
  EXPECT_TRUE(nodes_of(forward, "record_param_comms").empty()) << "has no gradients";
}

TEST_F(DryTraceTest, WhatCannotBeTracedSaysWhy) {
  const auto refusal = [&](const Case& refused) {
    return testing::error_of<std::invalid_argument>([&] { write_dry_trace(options, refused); });
  };
  Case skipped = test_case;
  skipped.skip_reason = "not of this model";
  EXPECT_EQ(refusal(skipped), "not of this model");
  Case endless = test_case;
  endless.workload.batch = int64_t{1} << 50;
  EXPECT_CONTAINS(refusal(endless), "needs more memory than any device has");
  EXPECT_TRUE(folder.entries().empty());
}

TEST_F(DryTraceTest, StagesOfDifferentDepthAreRefused) {
  Plan plan;
  plan.wholes.emplace("five", ModelConfig({.n_layers = 5}));
  options.world = 8;
  options.ranks = {.pipeline = 2};
  EXPECT_CONTAINS(testing::error_of<std::invalid_argument>([&] { check_world(options, plan); }),
                  "--world 8: with --pipeline-parallel 2 n_layers = 5 of five must be a multiple");
  options.ranks = {.pipeline = 5};
  check_world(options, plan);
}

TEST_F(DryTraceTest, APlanIsTracedAndAFileThatCannotBeWrittenFails) {
  Plan plan{.cases = {test_case}, .gemm_types = {}, .peak_cases = {}};
  EXPECT_EQ(trace_dry_run(options, plan), console::ExitCode::ok);
  EXPECT_EQ(folder.entries().size(), 1U);
  plan.cases[0].skip_reason = "not of this model";
  EXPECT_EQ(trace_dry_run(options, plan), console::ExitCode::ok);
  plan.cases[0].skip_reason.clear();
  options.execution_trace_folder = (folder / "absent").string();
  EXPECT_EQ(trace_dry_run(options, plan), console::ExitCode::failed);
}

}  // namespace
}  // namespace tinyllama::harness

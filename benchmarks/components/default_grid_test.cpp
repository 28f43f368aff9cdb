// The grid that runs when no axis is named, over the real components.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "benchmarks/components/components.hpp"
#include "benchmarks/harness/plan.hpp"

namespace tinyllama::components {
namespace {

using harness::Case;
using harness::Plan;

class DefaultGridTest : public ::testing::Test {
 protected:
  std::vector<harness::Component> components = all();
  std::vector<ProblemSize> sizes =
      load_problem_sizes(TINY_LLAMA_SOURCE_DIR "/fixtures/problem_sizes.json");
  Plan plan = harness::make_plan({}, components, sizes, cpu_traits());
};

TEST_F(DefaultGridTest, HasEveryComponentAtTinyInF32AndBf16) {
  std::set<std::string> names;
  for (const Case& test_case : plan.cases) names.insert(test_case.name());
  for (const char* dtype : {"f32", "bf16"}) {
    for (const char* variant : {"/baseline", "/optimized"}) {
      const std::string point = std::string(variant) + "/tiny/" + dtype + "/batch:8/seq:128";
      for (const char* component :
           {"embedding", "rms_norm", "rotary", "attention", "ffn", "block", "loss", "model"}) {
        // The set has no switch for a look-up.
        if (component == std::string("embedding") && variant == std::string("/optimized")) continue;
        for (const char* pass : {"/forward", "/forward_backward"})
          EXPECT_TRUE(names.contains(component + (pass + point))) << component << pass << point;
      }
      EXPECT_TRUE(names.contains("optimizer/update" + point));
      EXPECT_TRUE(names.contains("full_step/train" + point));
      EXPECT_TRUE(names.contains(std::string("full_step/train") + variant + "/small/" + dtype +
                                 "/batch:8/seq:256"));
    }
  }
}

TEST_F(DefaultGridTest, HasBatchBySequenceForTheComponentsThatCostMost) {
  std::map<std::string, int> counts;
  for (const Case& test_case : plan.cases) {
    const auto& w = test_case.workload;
    const bool on_grid = (w.batch == 4 || w.batch == 8 || w.batch == 16) &&
                         (w.seq == 64 || w.seq == 128 || w.seq == 256 || w.seq == 512);
    EXPECT_TRUE(on_grid) << test_case.name();
    if (test_case.size == "tiny") ++counts[test_case.component->name];
  }
  constexpr int grid = 3 * 4;
  constexpr int dtypes = 2;
  constexpr int variants = 2;  // baseline and optimized
  const std::map<std::string, int> expected = {{"embedding", 2 * dtypes},
                                               {"rms_norm", 2 * dtypes * variants},
                                               {"rotary", 2 * dtypes * variants},
                                               {"attention", grid * 2 * dtypes * variants},
                                               {"ffn", grid * 2 * dtypes * variants},
                                               {"block", grid * 2 * dtypes * variants},
                                               {"loss", 2 * dtypes * variants},
                                               {"model", 2 * dtypes * variants},
                                               {"optimizer", dtypes * variants},
                                               {"full_step", grid * dtypes * variants}};
  for (const auto& [component, count] : expected) EXPECT_EQ(counts[component], count) << component;
}

TEST_F(DefaultGridTest, HasNothingElseAndNothingTwice) {
  std::set<std::string> names;
  for (const Case& test_case : plan.cases) {
    EXPECT_TRUE(names.insert(test_case.name()).second) << test_case.name();
    EXPECT_EQ(test_case.skip_reason, "") << test_case.name();
    EXPECT_EQ(std::ranges::count(test_case.component->default_sizes, test_case.size), 1)
        << test_case.name();
  }
}

TEST_F(DefaultGridTest, BringsThePeaksOfItsTypes) {
  EXPECT_EQ(plan.gemm_types, std::vector<std::string>({"f32", "bf16"}));
  std::vector<std::string> peaks;
  for (const auto& peak : plan.peak_cases) peaks.push_back(peak.name);
  EXPECT_EQ(peaks, std::vector<std::string>({"peak/gemm/f32", "peak/gemm/bf16", "peak/bandwidth"}));
}

TEST_F(DefaultGridTest, ASequenceOfOneTokenHasNoLoss) {
  harness::Options options;
  options.axes.seqs = {1};
  options.axes.variants = {"baseline"};
  int refused = 0;
  for (const Case& test_case : harness::make_plan(options, components, sizes, cpu_traits()).cases) {
    const std::string& name = test_case.component->name;
    const bool needs_loss = name == "loss" || name == "full_step" ||
                            (name == "model" && test_case.pass != Pass::forward);
    EXPECT_EQ(test_case.skip_reason, needs_loss ? "seq = 1: the next-token loss needs at least 2 "
                                                  "tokens a sample"
                                                : "")
        << test_case.name();
    refused += needs_loss;
  }
  EXPECT_EQ(refused, 3 + 3 + 1);
}

}  // namespace
}  // namespace tinyllama::components

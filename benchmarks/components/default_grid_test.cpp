// The grid that runs when no axis is named, over the real components.
#include <fmt/format.h>
#include <gtest/gtest.h>

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

// Every component at tiny, of each the training passes alone; those that cost most at every batch
// and sequence; the step at small as well.
TEST_F(DefaultGridTest, HasTheseCasesOnceAndNothingElse) {
  std::set<std::string> expected;
  const auto add = [&](const std::string& case_of, const std::string& size, int batch, int seq) {
    for (const char* variant : {"baseline", "optimized"}) {
      // The set has no switch for a look-up.
      if (case_of.starts_with("embedding/") && variant == std::string("optimized")) continue;
      for (const char* dtype : {"f32", "bf16"})
        expected.insert(
            fmt::format("{}/{}/{}/{}/batch:{}/seq:{}", case_of, variant, size, dtype, batch, seq));
    }
  };
  const auto add_passes = [&](const std::string& component, int batch, int seq) {
    for (const char* pass : {"/forward", "/forward_backward"})
      add(component + pass, "tiny", batch, seq);
  };
  for (const char* component : {"embedding", "rms_norm", "rotary", "loss", "model"})
    add_passes(component, 8, 128);
  add("optimizer/update", "tiny", 8, 128);
  add("full_step/train", "small", 8, 256);
  for (const int batch : {4, 8, 16}) {
    for (const int seq : {64, 128, 256, 512}) {
      for (const char* component : {"attention", "ffn", "block"}) add_passes(component, batch, seq);
      add("full_step/train", "tiny", batch, seq);
    }
  }
  std::set<std::string> names;
  for (const Case& test_case : plan.cases) {
    names.insert(test_case.name());
    EXPECT_EQ(test_case.skip_reason, "") << test_case.name();
  }
  EXPECT_EQ(names, expected);
  EXPECT_EQ(names.size(), plan.cases.size());
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

#include "benchmarks/harness/plan.hpp"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

using Names = std::vector<std::string>;

// A component that costs as little as one can; only its name and passes matter to the plan.
Component named(const std::string& name, const std::vector<Pass>& passes) {
  Component component = testing::linear_component();
  component.name = name;
  component.passes = passes;
  return component;
}

class PlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    components = {named("norm", {Pass::forward, Pass::backward, Pass::forward_backward}),
                  named("loss", {Pass::forward, Pass::forward_backward}),
                  named("step", {Pass::train})};
    components[1].refusal = [](const Workload& workload, Pass) {
      return workload.seq < 2 ? std::string("seq = 1: no next token") : std::string();
    };
  }
  Plan plan() const { return make_plan(options, components, sizes, traits); }
  Names names() const {
    Names all;
    for (const Case& test_case : plan().cases) all.push_back(test_case.name());
    return all;
  }
  Names peaks() const {
    Names all;
    for (const PeakCase& peak : plan().peak_cases) all.push_back(peak.name);
    return all;
  }
  std::string error() const {
    return testing::error_of<std::invalid_argument>([&] { plan(); });
  }

  std::vector<Component> components;
  std::vector<ProblemSize> sizes = {{"tiny", ModelConfig(), 8, 128},
                                    {"small", ModelConfig({.n_layers = 8}), 6, 256}};
  Options options;
  DeviceTraits traits;
};

TEST_F(PlanTest, NamesSayEverythingInTheirOrder) {
  options.axes.components = {"step"};
  options.axes.dtypes = {Dtype::amp_bf16};
  options.axes.batches = {3};
  options.axes.seqs = {17};
  EXPECT_EQ(names(), Names({"step/train/baseline/tiny/amp_bf16/batch:3/seq:17"}));
}

TEST_F(PlanTest, AxesLeftOutTakeAllPassesBaselineTinyF32AndTheSizesOwnShape) {
  options.axes.components = {"norm"};
  EXPECT_EQ(names(), Names({"norm/forward/baseline/tiny/f32/batch:8/seq:128",
                            "norm/backward/baseline/tiny/f32/batch:8/seq:128",
                            "norm/forward_backward/baseline/tiny/f32/batch:8/seq:128"}));
}

TEST_F(PlanTest, ComponentsLeftOutAreAllAndBringThePeaks) {
  options.axes.passes = {Pass::forward};
  EXPECT_EQ(names(), Names({"norm/forward/baseline/tiny/f32/batch:8/seq:128",
                            "loss/forward/baseline/tiny/f32/batch:8/seq:128"}));
  EXPECT_EQ(peaks(), Names({"peak/gemm/f32", "peak/bandwidth"}));
  EXPECT_EQ(plan().gemm_types, Names({"f32"}));
}

TEST_F(PlanTest, EachSizeHasItsOwnBatchAndSequence) {
  options.axes.components = {"step"};
  options.axes.sizes = {"small", "tiny"};
  EXPECT_EQ(names(), Names({"step/train/baseline/small/f32/batch:6/seq:256",
                            "step/train/baseline/tiny/f32/batch:8/seq:128"}));
  options.axes.batches = {1, 2};
  EXPECT_EQ(names(), Names({"step/train/baseline/small/f32/batch:1/seq:256",
                            "step/train/baseline/small/f32/batch:2/seq:256",
                            "step/train/baseline/tiny/f32/batch:1/seq:128",
                            "step/train/baseline/tiny/f32/batch:2/seq:128"}));
}

TEST_F(PlanTest, PassesThatAComponentLacksMakeNoCase) {
  options.axes.passes = {Pass::backward, Pass::train};
  EXPECT_EQ(names(), Names({"norm/backward/baseline/tiny/f32/batch:8/seq:128",
                            "step/train/baseline/tiny/f32/batch:8/seq:128"}));
}

TEST_F(PlanTest, CasesCarryTheirWorkload) {
  options.axes.components = {"norm"};
  options.axes.passes = {Pass::backward};
  options.axes.sizes = {"small"};
  options.axes.dtypes = {Dtype::bf16};
  const Case test_case = plan().cases.at(0);
  EXPECT_EQ(test_case.component, components.data());
  EXPECT_EQ(test_case.pass, Pass::backward);
  EXPECT_EQ(test_case.size, "small");
  EXPECT_EQ(test_case.workload, (Workload{sizes[1].config, Variant(), Dtype::bf16, 6, 256}));
  EXPECT_EQ(test_case.skip_reason, "");
}

TEST_F(PlanTest, CustomSize) {
  options.custom_size = ModelDimensions{.hidden_dim = 64, .n_layers = 1};
  options.axes.sizes = {"custom"};
  options.axes.components = {"step"};
  const Case test_case = plan().cases.at(0);
  EXPECT_EQ(test_case.name(), "step/train/baseline/custom/f32/batch:8/seq:128");
  EXPECT_EQ(test_case.workload.config.hidden_dim(), 64);
  options.custom_size = ModelDimensions{.hidden_dim = 250};
  EXPECT_EQ(error(), "n_heads = 8: must divide hidden_dim = 250, but 250 % 8 = 2");
}

TEST_F(PlanTest, UnknownSizeNamesItAndTheKnownOnes) {
  options.axes.sizes = {"huge"};
  EXPECT_EQ(error(), "--sizes 'huge': must be one of tiny, small");
  options.axes.sizes = {"custom"};
  EXPECT_CONTAINS(error(), "custom needs --hidden-dim or another of its options");
  // Even where no component would use it.
  options.axes.sizes = {"huge"};
  options.axes.components = {"peak"};
  EXPECT_CONTAINS(error(), "--sizes 'huge'");
}

TEST_F(PlanTest, RepeatedAxesMakeNoDuplicates) {
  options.axes.components = {"norm", "norm"};
  options.axes.dtypes = {Dtype::f32, Dtype::f32};
  options.axes.batches = {8, 8};
  EXPECT_EQ(names().size(), 3U);
}

TEST_F(PlanTest, RefusedWorkloadsStayWithTheirReason) {
  options.axes.passes = {Pass::forward};
  options.axes.seqs = {1, 2};
  for (const Case& test_case : plan().cases) {
    const bool refused = test_case.component->name == "loss" && test_case.workload.seq == 1;
    EXPECT_EQ(test_case.skip_reason, refused ? "seq = 1: no next token" : "") << test_case.name();
  }
  EXPECT_EQ(plan().cases.size(), 4U);
}

TEST_F(PlanTest, WorkloadsBeyondTheCostFormulasAreErrors) {
  options.axes.components = {"norm"};
  for (const int64_t large : {int64_t{1} << 40, INT64_MAX}) {
    options.axes.batches = {large};
    options.axes.seqs = {int64_t{1} << 30};
    EXPECT_CONTAINS(error(), std::to_string(large));
    EXPECT_NE(error(), "no error");
  }
  options.axes.batches = {0};
  EXPECT_CONTAINS(error(), "batch = 0");
}

TEST_F(PlanTest, Peaks) {
  options.axes.components = {"peak"};
  EXPECT_TRUE(plan().cases.empty());
  EXPECT_EQ(peaks(), Names({"peak/gemm/f32", "peak/gemm/bf16", "peak/bandwidth"}));
  EXPECT_EQ(plan().gemm_types, Names({"f32", "bf16"}));
  options.axes.dtypes = {Dtype::amp_f16};
  EXPECT_EQ(peaks(), Names({"peak/gemm/f16", "peak/bandwidth"}));
  options.axes.components = {"peak", "step"};
  options.axes.dtypes = {Dtype::f32, Dtype::amp_bf16, Dtype::bf16};
  EXPECT_EQ(peaks(), Names({"peak/gemm/f32", "peak/gemm/bf16", "peak/bandwidth"}));
  EXPECT_EQ(names().size(), 3U);
  options.axes.components = {"step"};
  EXPECT_TRUE(plan().peak_cases.empty());
}

TEST_F(PlanTest, NamedPeaksAtAShapeBringTheGemmsOfTheStepThere) {
  options.axes.components = {"peak"};
  options.axes.dtypes = {Dtype::f32};
  options.axes.batches = {2};
  options.axes.seqs = {16};
  // hidden 256, 8 heads of 32, 4 KV heads, intermediate 512, vocabulary 1000: each linear
  // layer forward, for its input's gradient and for its weight's; Q, K and V in one are as
  // wide as the FFN, gate and up 1024; attention's of 2 x 4 KV heads
  const Names all = peaks();
  EXPECT_EQ(Names(all.begin(), all.begin() + 2), Names({"peak/gemm/f32", "peak/bandwidth"}));
  const std::set<std::string> gemms(all.begin() + 2, all.end());
  EXPECT_EQ(gemms.size(), all.size() - 2);
  std::set<std::string> expected;
  for (const char* shape :
       {"32x256x256", "256x256x32", "32x128x256", "32x256x128", "128x256x32", "32x512x256",
        "32x256x512", "512x256x32", "256x512x32", "32x1000x256", "32x256x1000", "1000x256x32",
        "32x1024x256", "32x256x1024", "1024x256x32", "8x32x16x32", "8x32x32x16", "8x16x32x32"})
    expected.insert(std::string("peak/gemm/f32/") + shape);
  EXPECT_EQ(gemms, expected);
  options.filter = "32x1000x256";
  EXPECT_EQ(peaks(), Names({"peak/gemm/f32/32x1000x256"}));
  EXPECT_EQ(plan().gemm_types, Names({"f32"}));
  options.filter = ".";
  options.axes.sizes = {"huge"};
  EXPECT_CONTAINS(error(), "--sizes 'huge'");
  options.axes.sizes = {};
  options.axes.components = {"peak", "step"};
  EXPECT_EQ(peaks().size(), all.size()) << "beside cases as well";
  options.axes.components = {"step"};
  EXPECT_TRUE(peaks().empty());
  options.axes.components = {};
  EXPECT_EQ(peaks(), Names({"peak/gemm/f32", "peak/bandwidth"})) << "peaks that nobody named";
}

TEST_F(PlanTest, GemmTypes) {
  EXPECT_EQ(gemm_type_name(Dtype::f64), "f64");
  EXPECT_EQ(gemm_type_name(Dtype::f32), "f32");
  EXPECT_EQ(gemm_type_name(Dtype::bf16), "bf16");
  EXPECT_EQ(gemm_type_name(Dtype::amp_bf16), "bf16");
  EXPECT_EQ(gemm_type_name(Dtype::f16), "f16");
  EXPECT_EQ(gemm_type_name(Dtype::amp_f16), "f16");
}

class PlanFilterTest : public PlanTest {
 protected:
  void SetUp() override {
    PlanTest::SetUp();
    options.axes.components = {"norm"};
    options.axes.seqs = {12, 128};
  }
  size_t count(const std::string& filter) {
    options.filter = filter;
    return plan().cases.size();
  }
};

TEST_F(PlanFilterTest, FindsAnywhereInTheName) {
  EXPECT_EQ(count("."), 6U);
  EXPECT_EQ(count("norm/backward"), 2U);
  EXPECT_EQ(count("backward"), 4U);
  EXPECT_EQ(count("^norm/(forward|backward)/"), 4U);
}

TEST_F(PlanFilterTest, AnchorsAtTheEndOfTheName) {
  EXPECT_EQ(count("seq:12$"), 3U);
  EXPECT_EQ(count("seq:12"), 6U);
}

TEST_F(PlanFilterTest, ALeadingMinusInverts) {
  EXPECT_EQ(count("-forward_backward"), 4U);
  EXPECT_EQ(count("-seq:12$"), 3U);
}

TEST_F(PlanFilterTest, InvalidExpressionsAndEmptyPlansAreErrors) {
  options.filter = "norm/(";
  EXPECT_CONTAINS(error(), "--benchmark_filter 'norm/(': is not a regular expression");
  options.filter = "embedding";
  EXPECT_EQ(error(),
            "no case is left to run: 6 by the axes, none after --benchmark_filter 'embedding'");
  options.filter = "-.";
  EXPECT_CONTAINS(error(), "no case is left to run");
  options.filter = ".";
  options.axes.passes = {Pass::update};
  EXPECT_CONTAINS(error(), "none by the axes; of --passes, ");
  EXPECT_CONTAINS(error(), "norm has forward");
}

TEST_F(PlanFilterTest, ActsOnThePeaksAndOnTheTypesToMeasure) {
  options.axes.components = {};
  options.axes.dtypes = {Dtype::f32, Dtype::bf16};
  options.filter = "norm/.*/bf16/";
  EXPECT_TRUE(plan().peak_cases.empty());
  EXPECT_EQ(plan().gemm_types, Names({"bf16"}));
  options.filter = "peak/gemm/f32";
  EXPECT_TRUE(plan().cases.empty());
  EXPECT_EQ(peaks(), Names({"peak/gemm/f32"}));
  EXPECT_EQ(plan().gemm_types, Names({"f32"}));
}

}  // namespace
}  // namespace tinyllama::harness

#include "benchmarks/harness/plan.hpp"

#include <gtest/gtest.h>

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

TEST_F(PlanTest, AShareOfASizeNamesTheModelThatItIsOf) {
  options.axes.sizes = {"tiny", "small"};
  EXPECT_TRUE(plan().wholes.empty());
  options.ranks = {.tensor = 2, .pipeline = 4};
  const Plan shares = plan();
  const std::map<std::string, ModelConfig> expected = {{"tiny-tp2-pp4", sizes[0].config},
                                                       {"small-tp2-pp4", sizes[1].config}};
  EXPECT_EQ(shares.wholes, expected);
  EXPECT_EQ(shares.cases.front().workload.config.n_heads(), 4);
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

TEST_F(PlanTest, PassesThatAComponentLacksAndRepeatedAxesMakeNoCase) {
  options.axes.passes = {Pass::backward, Pass::train};
  options.axes.dtypes = {Dtype::f32, Dtype::f32};
  options.axes.batches = {8, 8};
  EXPECT_EQ(names(), Names({"norm/backward/baseline/tiny/f32/batch:8/seq:128",
                            "step/train/baseline/tiny/f32/batch:8/seq:128"}));
}

TEST_F(PlanTest, CasesCarryTheirWorkloadAndNamesSayAllOfIt) {
  options.axes.components = {"norm"};
  options.axes.passes = {Pass::backward};
  options.axes.sizes = {"small"};
  options.axes.dtypes = {Dtype::amp_bf16};
  options.axes.seqs = {17};
  const Case test_case = plan().cases.at(0);
  EXPECT_EQ(test_case.name(), "norm/backward/baseline/small/amp_bf16/batch:6/seq:17");
  EXPECT_EQ(test_case.component, components.data());
  EXPECT_EQ(test_case.pass, Pass::backward);
  EXPECT_EQ(test_case.size, "small");
  EXPECT_EQ(test_case.workload, (Workload{sizes[1].config, Variant(), Dtype::amp_bf16, 6, 17}));
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

TEST_F(PlanTest, WarnsOfSequencesThatASizeWasNotMadeFor) {
  sizes[0].config_text = R"({"max_position_embeddings": 64})";
  options.axes.sizes = {"tiny", "small"};
  options.axes.components = {"step"};
  ASSERT_EQ(plan().warnings.size(), 1U);  // the size's own sequence is 128
  EXPECT_CONTAINS(plan().warnings.front(),
                  "tiny: sequences of 128 tokens are longer than max_position_embeddings = 64");
  options.axes.seqs = {32, 64};
  EXPECT_TRUE(plan().warnings.empty());
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
  const Names all = peaks();
  EXPECT_EQ(Names(all.begin(), all.begin() + 2), Names({"peak/gemm/f32", "peak/bandwidth"}));
  Names expected;
  for (const GemmShape& shape : step_gemms({ModelConfig(), Variant(), Dtype::f32, 2, 16}))
    expected.push_back("peak/gemm/f32/" + to_string(shape));
  EXPECT_EQ(Names(all.begin() + 2, all.end()), expected);
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

class PlanFilterTest : public PlanTest {
 protected:
  void SetUp() override {
    PlanTest::SetUp();
    options.axes.components = {"norm"};
    options.axes.seqs = {12, 128};
  }
};

TEST_F(PlanFilterTest, FindsAnywhereInTheNameAndALeadingMinusInverts) {
  const std::pair<const char*, size_t> counts[] = {{".", 6},
                                                   {"norm/backward", 2},
                                                   {"backward", 4},
                                                   {"^norm/(forward|backward)/", 4},
                                                   {"seq:12$", 3},
                                                   {"seq:12", 6},
                                                   {"-forward_backward", 4},
                                                   {"-seq:12$", 3}};
  for (const auto& [filter, count] : counts) {
    options.filter = filter;
    EXPECT_EQ(plan().cases.size(), count) << filter;
  }
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

#include "benchmarks/scaling/step_counters.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tinyllama::scaling {
namespace {

TEST(RankSamplesTest, TheSlowestRankMakesAStep) {
  const RoundSamples round = {{1, 4}, {3, 2}};
  EXPECT_DOUBLE_EQ(slowest_seconds(round), 3.5);
  EXPECT_DOUBLE_EQ(mean_seconds(round), 2.5);
}

TEST(RankSamplesTest, RanksThatHadNothingToDoDoNotCount) {
  const RoundSamples round = {{2}, {}};
  EXPECT_DOUBLE_EQ(slowest_seconds(round), 2);
  EXPECT_DOUBLE_EQ(mean_seconds(round), 2);
  EXPECT_THROW(slowest_seconds({{}, {}}), std::invalid_argument);
}

TEST(ScalingCountersTest, WeakScalingLosesToWhatTheModesShow) {
  const ModeSamples round = {{StepMode::alone, {{8}, {}}},
                             {StepMode::local, {{9}, {11}}},
                             {StepMode::no_overlap, {{19}, {18}}},
                             {StepMode::overlap, {{15}, {16}}}};
  const auto counters = scaling_counters(round, StepMode::overlap, 2);
  EXPECT_DOUBLE_EQ(counters.at("weak_efficiency_percent"), 50);
  EXPECT_DOUBLE_EQ(counters.at("loss_slower_local_percent"), 12.5);
  EXPECT_DOUBLE_EQ(counters.at("loss_imbalance_percent"), 6.25);
  EXPECT_DOUBLE_EQ(counters.at("loss_communication_percent"), 31.25);
  EXPECT_DOUBLE_EQ(counters.at("overlap_percent"), 37.5);
  EXPECT_EQ(counters.count("strong_efficiency_percent"), 0U);
}

TEST(ScalingCountersTest, StrongScalingAlsoLosesToSmallBatches) {
  const ModeSamples round = {{StepMode::alone, {{5}, {}}},
                             {StepMode::alone_global, {{8}, {}}},
                             {StepMode::local, {{6}, {6}}},
                             {StepMode::overlap, {{8}, {7}}}};
  const auto counters = scaling_counters(round, StepMode::overlap, 2);
  EXPECT_DOUBLE_EQ(counters.at("strong_efficiency_percent"), 50);
  EXPECT_DOUBLE_EQ(counters.at("loss_small_batch_percent"), 12.5);
}

TEST(ScalingCountersTest, LossesAndEfficiencyAddUp) {
  const ModeSamples round = {{StepMode::alone, {{5.1}, {}, {}}},
                             {StepMode::alone_global, {{13.7}, {}, {}}},
                             {StepMode::local, {{5.9}, {6.3}, {6.1}}},
                             {StepMode::overlap, {{7.7}, {7.9}, {7.8}}}};
  double sum = 0;
  for (const auto& [name, value] : scaling_counters(round, StepMode::overlap, 3)) {
    if (name.rfind("loss_", 0) == 0 || name == "strong_efficiency_percent") sum += value;
  }
  EXPECT_NEAR(sum, 100, 1e-9);
}

TEST(ScalingCountersTest, NothingIsHiddenWhereSumsCostNothing) {
  const ModeSamples round = {{StepMode::alone, {{5}, {}}},
                             {StepMode::local, {{6}, {6}}},
                             {StepMode::no_overlap, {{6}, {6}}},
                             {StepMode::overlap, {{6}, {6}}}};
  EXPECT_EQ(scaling_counters(round, StepMode::overlap, 2).count("overlap_percent"), 0U);
}

}  // namespace
}  // namespace tinyllama::scaling

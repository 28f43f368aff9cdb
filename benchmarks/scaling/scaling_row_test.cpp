#include "benchmarks/scaling/scaling_row.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tinyllama::scaling {
namespace {

TEST(ScalingRowTest, RepetitionsAreInGoogleBenchmarksFormat) {
  const auto row =
      to_case_result("step/ranks:2", benchmark::kMillisecond,
                     {{0.002, 0.001, 4, {{"ranks", 2}}}, {0.004, 0.003, 4, {{"ranks", 2}}}});
  ASSERT_EQ(row.entries.size(), 6U);
  const auto& first = row.entries[0];
  EXPECT_EQ(first.at("name"), "step/ranks:2");
  EXPECT_EQ(first.at("run_type"), "iteration");
  EXPECT_EQ(first.at("repetition_index"), 0);
  EXPECT_EQ(first.at("repetitions"), 2);
  EXPECT_EQ(first.at("iterations"), 4);
  EXPECT_DOUBLE_EQ(first.at("real_time"), 2);
  EXPECT_DOUBLE_EQ(first.at("cpu_time"), 1);
  EXPECT_EQ(first.at("time_unit"), "ms");
  EXPECT_DOUBLE_EQ(first.at("ranks"), 2);
}

TEST(ScalingRowTest, AggregatesAreThoseOfTheRepetitions) {
  const auto row = to_case_result("x", benchmark::kMicrosecond,
                                  {{1e-6, 0, 1, {{"c", 1}}},
                                   {2e-6, 0, 1, {{"c", 2}}},
                                   {6e-6, 0, 1, {{"c", 9}, {"sometimes", 1}}}});
  ASSERT_EQ(row.entries.size(), 7U);
  const auto& mean = row.entries[3];
  EXPECT_EQ(mean.at("aggregate_name"), "mean");
  EXPECT_DOUBLE_EQ(mean.at("real_time"), 3);
  EXPECT_DOUBLE_EQ(mean.at("c"), 4);
  EXPECT_FALSE(mean.contains("sometimes"));
  EXPECT_EQ(row.entries[4].at("aggregate_name"), "median");
  EXPECT_DOUBLE_EQ(row.entries[4].at("real_time"), 2);
  EXPECT_NEAR(row.entries[5].at("real_time").get<double>(), 2.6457513, 1e-6);
  EXPECT_EQ(row.entries[6].at("aggregate_unit"), "percentage");
  EXPECT_NEAR(row.entries[6].at("real_time").get<double>(), 2.6457513 / 3, 1e-6);
}

TEST(ScalingRowTest, OneRepetitionHasNoAggregates) {
  EXPECT_EQ(to_case_result("x", benchmark::kMillisecond, {{1, 1, 1, {}}}).entries.size(), 1U);
}

TEST(MedianTest, OfAnEvenNumberItIsTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(median({5, 1, 2}), 2);
  EXPECT_THROW(median({}), std::invalid_argument);
}

}  // namespace
}  // namespace tinyllama::scaling

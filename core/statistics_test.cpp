#include "core/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

namespace tinyllama {
namespace {

TEST(StatisticsTest, TheMedianOfAnEvenNumberIsTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(median({5, 1, 2}), 2);
  EXPECT_THROW(median({}), std::invalid_argument);
}

// AR(1) about 1, so that batches of samples resemble each other more than independent ones do;
// `drift`: of the mean, from the first to the last sample.
std::vector<double> made_up_samples(size_t count, double memory, double drift,
                                    std::mt19937_64& random) {
  std::normal_distribution<double> noise(0, 0.05 * std::sqrt(1 - memory * memory));
  std::vector<double> values;
  double state = std::normal_distribution<double>(0, 0.05)(random);
  for (size_t i = 0; i < count; ++i) {
    state = memory * state + noise(random);
    values.push_back(1 + state + drift * static_cast<double>(i) / static_cast<double>(count));
  }
  return values;
}

// What the interval that it replaced claimed for such samples held in 44 % at 0.9, in 20 % at 0.98.
TEST(StatisticsTest, SteadinessCoversTheMedianOfSamplesThatResembleTheirNeighbours) {
  std::mt19937_64 random(7);
  for (const double memory : {0.0, 0.6, 0.9, 0.98}) {
    int held = 0;
    double width = 0;
    constexpr int trials = 2000;
    for (int trial = 0; trial < trials; ++trial) {
      const auto values = made_up_samples(1000, memory, 0, random);
      const double middle = median(values);
      const double half = steadiness(values).value() * middle;
      held += std::abs(middle - 1) <= half ? 1 : 0;
      width += half / trials;
    }
    // Three standard errors of a share of 95 % below it, of 90 % where a batch is two memories
    // long.
    const double least = memory > 0.9 ? 0.90 : 0.95;
    EXPECT_GE(held, least * trials - 3 * std::sqrt(0.95 * 0.05 * trials)) << memory;
    if (memory == 0) {
      const double ideal = 1.96 * 0.05 * std::sqrt(std::acos(-1.0) / 2 / 1000);
      EXPECT_LT(width, 1.6 * ideal) << "wider than it needs to be";
    }
  }
}

TEST(StatisticsTest, ADriftIsNotSteady) {
  std::mt19937_64 random(7);
  const double still = steadiness(made_up_samples(1000, 0, 0, random)).value();
  EXPECT_LT(still, 0.01);
  EXPECT_GT(steadiness(made_up_samples(1000, 0, 0.2, random)).value(), 0.10) << "half of its range";
}

TEST(StatisticsTest, SteadinessIsStudentsIntervalOfTheBatchesOverTheMedian) {
  EXPECT_FALSE(steadiness({1, 2, 3, 4, 5}));
  EXPECT_DOUBLE_EQ(*steadiness({2, 2, 2, 2, 2, 2}), 0);
  // By turns: their autocorrelation is below zero, and widens nothing. t(5) = 2.571.
  EXPECT_NEAR(*steadiness({1, 3, 1, 3, 1, 3}), 2.5705818 * std::sqrt(1.2) / std::sqrt(6.0) / 2,
              1e-4);
}

// Two of 0.9 and 1.1: their logarithms are 0.1003 about -0.0050, and t(1) = 12.706.
TEST(StatisticsTest, TheIntervalOfACaseIsThatOfItsRepetitions) {
  EXPECT_FALSE(repetitions_interval({1}));
  const Interval two = *repetitions_interval({0.9, 1.1});
  EXPECT_NEAR(two.low, std::exp(-0.005025 - 12.706 * 0.141897 / std::sqrt(2.0)), 1e-3);
  EXPECT_NEAR(two.high, std::exp(-0.005025 + 12.706 * 0.141897 / std::sqrt(2.0)), 1e-2);
  EXPECT_EQ(repetitions_interval({2, 2, 2})->high, 2);
  // Whatever one stray repetition does, the case's time is in it.
  std::vector<double> stray(40, 1.0);
  stray.push_back(1e6);
  EXPECT_LE(repetitions_interval(stray)->low, 1);
}

TEST(StatisticsTest, TheIntervalOfACaseCoversTheMedianOfItsTimes) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> draw(0, 0.2);
  for (const size_t repetitions : {2, 3, 10, 30}) {
    int held = 0;
    constexpr int trials = 4000;
    for (int trial = 0; trial < trials; ++trial) {
      std::vector<double> values(repetitions);
      for (double& value : values) value = draw(random);
      const Interval interval = *repetitions_interval(values);
      held += interval.low <= 1 && 1 <= interval.high ? 1 : 0;
    }
    EXPECT_GE(held, 0.95 * trials - 3 * std::sqrt(0.95 * 0.05 * trials)) << repetitions;
    EXPECT_LE(held, 0.98 * trials) << repetitions << ": wider than it needs to be";
  }
}

TEST(StatisticsTest, ThinnedValuesAreSpreadOverAllAndKeepTheirOrder) {
  EXPECT_EQ(thinned({3, 1, 2}, 3), (std::vector<double>{3, 1, 2}));
  EXPECT_EQ(thinned({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 4), (std::vector<double>{0, 2, 5, 7}));
}

// By hand: the chance of no head in six tosses is 1/64, of at most one in nine 10/512.
TEST(StatisticsTest, TheIntervalOfAMedianLeavesOutAsManyAsTheSignTestAllows) {
  EXPECT_FALSE(median_interval({1, 2, 3, 4, 5}));
  const auto of = [](int count) {
    std::vector<double> values;
    for (int i = count; i > 0; --i) values.push_back(i);
    const Interval found = median_interval(values).value();
    return std::vector<double>{found.low, found.high};
  };
  EXPECT_EQ(of(6), (std::vector<double>{1, 6}));
  EXPECT_EQ(of(8), (std::vector<double>{1, 8}));
  EXPECT_EQ(of(9), (std::vector<double>{2, 8}));
  EXPECT_EQ(of(20), (std::vector<double>{6, 15}));
}

}  // namespace
}  // namespace tinyllama

#include "benchmarks/harness/samples.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>

namespace tinyllama::harness {
namespace {

TEST(SamplesTest, TheMedianOfAnEvenNumberIsTheMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(median({5, 1, 2}), 2);
  EXPECT_THROW(median({}), std::invalid_argument);
}

// Ranks from tables of the sign test: at n = 6 the whole range (96.9 %), at 10 the second from
// either end (97.9 %), at 25 the eighth (95.7 %), at 100 the 40th (96.5 %).
TEST(SamplesTest, TheIntervalOfTheMedianIsThatOfTheSignTest) {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1.0);
  const auto of_first = [&](size_t n) {
    std::vector<double> first(values.begin(), values.begin() + static_cast<int64_t>(n));
    std::reverse(first.begin(), first.end());
    return median_interval(first);
  };
  EXPECT_FALSE(of_first(5));
  for (const auto& [n, low] : {std::pair<size_t, double>{6, 1}, {10, 2}, {25, 8}, {100, 40}}) {
    const auto interval = of_first(n);
    ASSERT_TRUE(interval) << n;
    EXPECT_EQ(interval->low, low) << n;
    EXPECT_EQ(interval->high, static_cast<double>(n) + 1 - low) << n;
  }
}

TEST(SamplesTest, TheIntervalHoldsTheMedianInAtLeast95Percent) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> draw(1);
  const double true_median = std::log(2.0);
  for (const size_t n : {7, 30, 600}) {
    int held = 0;
    constexpr int trials = 4000;
    for (int trial = 0; trial < trials; ++trial) {
      std::vector<double> values(n);
      for (double& value : values) value = draw(random);
      const auto interval = *median_interval(values);
      held += interval.low <= true_median && true_median <= interval.high ? 1 : 0;
    }
    // Three standard errors of a share of 95 % below it.
    EXPECT_GE(held, 0.95 * trials - 3 * std::sqrt(0.95 * 0.05 * trials)) << n;
    EXPECT_LE(held, 0.99 * trials) << n << ": wider than it needs to be";
  }
}

TEST(SamplesTest, PrecisionIsHalfTheIntervalOverTheMedian) {
  EXPECT_FALSE(median_precision({1, 2, 3}));
  EXPECT_DOUBLE_EQ(*median_precision({1, 2, 3, 4, 5, 6}), 2.5 / 3.5);
  EXPECT_DOUBLE_EQ(*median_precision({2, 2, 2, 2, 2, 2}), 0);
}

TEST(SamplesTest, ThinnedValuesAreSpreadOverAllAndKeepTheirOrder) {
  EXPECT_EQ(thinned({3, 1, 2}, 3), (std::vector<double>{3, 1, 2}));
  EXPECT_EQ(thinned({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 4), (std::vector<double>{0, 2, 5, 7}));
}

}  // namespace
}  // namespace tinyllama::harness

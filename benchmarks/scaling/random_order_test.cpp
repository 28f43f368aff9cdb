#include "benchmarks/scaling/random_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tinyllama::scaling {
namespace {

TEST(RandomOrderTest, EveryIndexComesOnce) {
  for (const size_t count : {0U, 1U, 5U}) {
    auto order = random_order(count, 42, 3);
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(order.at(i), i);
  }
}

TEST(RandomOrderTest, TheSameNumbersGiveTheSameOrderAndRoundsDiffer) {
  EXPECT_EQ(random_order(6, 1, 2), random_order(6, 1, 2));
  std::set<std::vector<size_t>> orders;
  for (uint64_t round = 0; round < 20; ++round) orders.insert(random_order(6, 1, round));
  EXPECT_GT(orders.size(), 15U);
}

}  // namespace
}  // namespace tinyllama::scaling

#include "benchmarks/harness/find_limit.hpp"

#include <gtest/gtest.h>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

class FindLimitTest : public ::testing::Test {
 protected:
  // The peak at a batch, of 4 tokens a sample.
  int64_t peak_at(int64_t batch) const {
    return testing::small_case(component, Pass::forward_backward, Dtype::f32, batch)
        .memory()
        .peak();
  }
  MemoryBudget room_for(int64_t batch) const { return {peak_at(batch), "--memory-limit"}; }

  Component component = testing::linear_component();
  std::vector<Case> cases = {testing::small_case(component, Pass::forward_backward)};
  instruments::Device cpu = instruments::Device::select("cpu");
};

TEST_F(FindLimitTest, IsTheLastThatFits) {
  for (const int64_t batch : {1, 2, 3, 7, 8, 1000}) {
    const auto limits = find_limits(cases, LimitAxis::batch, room_for(batch));
    ASSERT_EQ(limits.size(), 1U);
    EXPECT_EQ(limits[0].largest, batch);
    EXPECT_EQ(limits[0].at.workload.batch, batch);
    EXPECT_EQ(limits[0].needed_bytes, peak_at(batch));
    EXPECT_EQ(limits[0].needed_bytes_beyond, peak_at(batch + 1));
  }
  const auto limits = find_limits(cases, LimitAxis::batch, {peak_at(5) - 1, "--memory-limit"});
  EXPECT_EQ(limits[0].largest, 4) << "one byte less";
}

TEST_F(FindLimitTest, NoneWhereTheSmallestDoesNotFitAndNoEndWhereAllDo) {
  EXPECT_EQ(find_limits(cases, LimitAxis::seq, {1, "--memory-limit"})[0].largest, 0);
  const auto all = find_limits(cases, LimitAxis::seq, {INT64_MAX, "--memory-limit"});
  EXPECT_EQ(all[0].largest, kLargestSearched);
  EXPECT_EQ(all[0].needed_bytes_beyond, 0);
}

TEST_F(FindLimitTest, CasesThatDifferInWhatIsSearchedAreOneAndSkippedOnesSayWhy) {
  cases = {testing::small_case(component, Pass::forward, Dtype::f32, 2),
           testing::small_case(component, Pass::forward, Dtype::f32, 4),
           testing::small_case(component, Pass::backward)};
  cases[2].skip_reason = "has no such switch";
  const auto limits = find_limits(cases, LimitAxis::batch, room_for(3));
  ASSERT_EQ(limits.size(), 2U);
  EXPECT_EQ(limits[1].at.skip_reason, "has no such switch");
  EXPECT_EQ(find_limits(cases, LimitAxis::seq, room_for(3)).size(), 3U);
}

TEST_F(FindLimitTest, ALossIsSearchedFromTwoTokensOn) {
  component.refusal = [](const Workload& w, Pass) {
    return w.seq < 2 ? std::string("needs two tokens") : std::string();
  };
  EXPECT_EQ(find_limits(cases, LimitAxis::seq, {1, "--memory-limit"})[0].at.workload.seq, 2);
}

TEST_F(FindLimitTest, WhatWasFoundRunsAndOneMoreDoesNot) {
  const MemoryBudget budget = room_for(6);
  auto limits = find_limits(cases, LimitAxis::batch, budget);
  confirm(limits[0], LimitAxis::batch, budget, cpu, 42);
  ASSERT_TRUE(limits[0].tried && limits[0].tried_beyond);
  EXPECT_TRUE(limits[0].tried->fits) << limits[0].tried->failure;
  EXPECT_EQ(limits[0].tried->peak_bytes, budget.bytes);
  // libtorch alone takes more than that
  EXPECT_GT(limits[0].tried->process_bytes.value_or(0), budget.bytes + (int64_t{100} << 20));
  EXPECT_FALSE(limits[0].tried_beyond->fits);
  EXPECT_TRUE(testing::contains(limits[0].tried_beyond->failure, "out of memory"))
      << limits[0].tried_beyond->failure;
}

}  // namespace
}  // namespace tinyllama::harness

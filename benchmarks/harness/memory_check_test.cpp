#include "benchmarks/harness/memory_check.hpp"

#include <gtest/gtest.h>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

class MemoryCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    test_case.known_memory = PredictedMemory{.weights = 1000, .temporary = 536};
    component.cost = [](const Workload&, Pass) { return Cost{.hardware_flops = 2'000'000'000}; };
  }
  Component component = testing::linear_component();
  Case test_case = testing::small_case(component, Pass::forward, Dtype::amp_bf16);
  instruments::Device cpu = instruments::Device::select("cpu");
};

TEST_F(MemoryCheckTest, FitsUpToTheBudget) {
  EXPECT_EQ(refuse_for_memory(test_case, {1536, "free on the device"}), "");
  EXPECT_EQ(refuse_for_memory(test_case, {1537, "free on the device"}), "");
}

TEST_F(MemoryCheckTest, RefusalHasBothNumbersAndTheirSource) {
  EXPECT_EQ(refuse_for_memory(test_case, {1535, "--memory-limit"}),
            "predicted peak memory 1.50 KiB exceeds 1.50 KiB (--memory-limit)");
  EXPECT_EQ(refuse_for_memory(test_case, {1024, "free on the device"}),
            "predicted peak memory 1.50 KiB exceeds 1.00 KiB (free on the device)");
}

TEST_F(MemoryCheckTest, BudgetIsTheLowerOfLimitAndFreeMemory) {
  const MemoryBudget limited = memory_budget(cpu, 1000, 0);
  EXPECT_EQ(limited.bytes, 1000);
  EXPECT_EQ(limited.source, "--memory-limit");
  for (const int64_t no_limit : {int64_t{0}, INT64_MAX}) {
    const MemoryBudget free = memory_budget(cpu, no_limit, 0);
    EXPECT_GT(free.bytes, 1000);
    EXPECT_LE(free.bytes, cpu.description().memory_bytes);
    EXPECT_EQ(free.source, "free on the device");
  }
}

TEST_F(MemoryCheckTest, LiveBytesAreNotLeftOfTheLimitHoweverMuchIsFree) {
  // Limits below and above what is free.
  for (const int64_t limit : {int64_t{5000}, INT64_MAX}) {
    const MemoryBudget left = memory_budget(cpu, limit, limit - 1000);
    EXPECT_EQ(left.bytes, 1000);
    EXPECT_EQ(left.source, "left of --memory-limit");
  }
  EXPECT_EQ(memory_budget(cpu, 1000, 1001).bytes, 0);
  EXPECT_EQ(memory_budget(cpu, 0, INT64_MAX).source, "free on the device");
}

TEST_F(MemoryCheckTest, TimeOfTheGemmsAtTheRateGiven) {
  const GemmRate rate{1e9, "the measured bf16 peak"};
  EXPECT_EQ(refuse_for_time(test_case, rate, kFewestIterations * 2.0), "");
  EXPECT_EQ(refuse_for_time(test_case, rate, 5.5),
            "3 iterations need at least 6.0 s at 1.00 GFLOP/s (the measured bf16 peak), more than "
            "--max-seconds-per-case 5.5");
}

TEST_F(MemoryCheckTest, ComponentsWithoutGemmsAreNeverTooSlow) {
  component.cost = [](const Workload&, Pass) { return Cost{.bytes = INT64_MAX}; };
  EXPECT_EQ(refuse_for_time(test_case, {1.0, "slow"}, 1e-9), "");
}

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
}

TEST_F(FindLimitTest, OneByteLessIsOneLess) {
  const auto limits = find_limits(cases, LimitAxis::batch, {peak_at(5) - 1, "--memory-limit"});
  EXPECT_EQ(limits[0].largest, 4);
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
  EXPECT_EQ(limits[1].skip_reason, "has no such switch");
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

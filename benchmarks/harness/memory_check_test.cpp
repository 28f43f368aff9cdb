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

}  // namespace
}  // namespace tinyllama::harness

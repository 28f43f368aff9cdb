#include "benchmarks/harness/memory_check.hpp"

#include <gtest/gtest.h>

namespace tinyllama::harness {
namespace {

TEST(MemoryCheckTest, BudgetIsTheLowerOfLimitAndFreeMemory) {
  const auto cpu = instruments::Device::select("cpu");
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

TEST(MemoryCheckTest, LiveBytesAreNotLeftOfTheLimitHoweverMuchIsFree) {
  const auto cpu = instruments::Device::select("cpu");
  // Limits below and above what is free.
  for (const int64_t limit : {int64_t{5000}, INT64_MAX}) {
    const MemoryBudget left = memory_budget(cpu, limit, limit - 1000);
    EXPECT_EQ(left.bytes, 1000);
    EXPECT_EQ(left.source, "left of --memory-limit");
  }
  EXPECT_EQ(memory_budget(cpu, 1000, 1001).bytes, 0);
  EXPECT_EQ(memory_budget(cpu, 0, INT64_MAX).source, "free on the device");
}

}  // namespace
}  // namespace tinyllama::harness

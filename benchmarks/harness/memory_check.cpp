#include "benchmarks/harness/memory_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.hpp"

namespace tinyllama::harness {

MemoryBudget memory_budget(const instruments::Device& device, int64_t limit_bytes,
                           int64_t live_bytes) {
  const int64_t free = device.free_memory_bytes();
  const int64_t left = std::max<int64_t>(limit_bytes - live_bytes, 0);
  if (limit_bytes == 0 || left >= free) return {free, "free on the device"};
  return {left, live_bytes > 0 ? "left of --memory-limit" : "--memory-limit"};
}

std::string refuse_for_memory(const Case& test_case, const MemoryBudget& budget) {
  const int64_t predicted = test_case.memory().peak();
  if (predicted <= budget.bytes) return {};
  return fmt::format("predicted peak memory {} exceeds {} ({})", format_bytes(predicted),
                     format_bytes(budget.bytes), budget.source);
}

}  // namespace tinyllama::harness

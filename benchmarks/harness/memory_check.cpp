#include "benchmarks/harness/memory_check.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "benchmarks/console/option_grammar.hpp"

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
  return fmt::format("predicted peak memory {} exceeds {} ({})", console::format_bytes(predicted),
                     console::format_bytes(budget.bytes), budget.source);
}

std::string refuse_for_time(const Case& test_case, const GemmRate& rate, double max_seconds) {
  const double seconds = kFewestIterations * static_cast<double>(test_case.cost().hardware_flops) /
                         rate.flops_per_second;
  if (seconds <= max_seconds) return {};
  return fmt::format(
      "{} iterations need at least {:.1f} s at {}FLOP/s ({}), more than --max-seconds-per-case "
      "{:g}",
      kFewestIterations, seconds, console::format_count(rate.flops_per_second), rate.source,
      max_seconds);
}

}  // namespace tinyllama::harness

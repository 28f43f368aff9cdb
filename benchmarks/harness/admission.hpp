// Whether a case may run: predicted memory against what is free, predicted time against the user's
// patience.
#pragma once

#include <cstdint>
#include <string>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

struct MemoryBudget {
  int64_t bytes = 0;
  std::string source;  ///< "free on the device", "--memory-limit"
};

/// The lower of what the device has free now and `limit_bytes` (0: no limit).
MemoryBudget memory_budget(const instruments::Device& device, int64_t limit_bytes);

/// Empty if the predicted peak fits; else the reason with both numbers.
std::string refuse_for_memory(const Case& planned, const MemoryBudget& budget);

/// Iterations that even the shortest measurement needs: the gate's, the metered and the timed one.
inline constexpr int kFewestIterations = 3;

/// Seconds one iteration takes at least: its products at the peak of `flops_per_second`.
double shortest_seconds(const Case& planned, double flops_per_second);

/// Empty if kFewestIterations can end within `max_seconds`; else the reason with both numbers.
std::string refuse_for_time(const Case& planned, double flops_per_second, double max_seconds);

}  // namespace tinyllama::harness

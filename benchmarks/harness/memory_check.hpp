// What fits: predicted memory of a case against what is free.
#pragma once

#include <cstdint>
#include <string>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

struct MemoryBudget {
  int64_t bytes = 0;
  std::string source;  ///< "free on the device", "--memory-limit", "left of --memory-limit"
};

/// The lower of what the device has free now and `limit_bytes` (0: no limit) less `live_bytes`,
/// which the cases hold that stay open beside the next one.
MemoryBudget memory_budget(const instruments::Device& device, int64_t limit_bytes,
                           int64_t live_bytes);

/// Empty if the predicted peak fits; else the reason with both numbers.
std::string refuse_for_memory(const Case& test_case, const MemoryBudget& budget);

}  // namespace tinyllama::harness

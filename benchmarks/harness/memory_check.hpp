// What fits: predicted memory of a case against what is free, and the same of a whole plan
// (--dry-run).
#pragma once

#include <cstdint>
#include <string>

#include "benchmarks/harness/plan.hpp"
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

/// What --dry-run prints: costs and predicted memory of every case, and whether it fits; a table,
/// or with --benchmark_format=json the exact figures, device and commit. Allocates no tensor.
std::string dry_run_text(const Options& options, const Plan& plan,
                         const instruments::Device& device);

}  // namespace tinyllama::harness

// What fits: predicted memory of a case against what is free (and its predicted time against the
// user's limit), for the runs, for --dry-run and for --find-limit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/options.hpp"
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

/// Iterations that even the shortest measurement needs: the gate's, the metered and the timed one.
inline constexpr int kFewestIterations = 3;

/// A rate of GEMMs to predict time with, and where it comes from.
struct GemmRate {
  double flops_per_second = 0;
  std::string source;  ///< "the measured bf16 peak", "what smaller cases reached"
};

/// Empty if kFewestIterations at this rate can end within `max_seconds`; else the reason with both
/// numbers.
std::string refuse_for_time(const Case& test_case, const GemmRate& rate, double max_seconds);

/// The search for a limit ends here.
inline constexpr int64_t kLargestSearched = int64_t{1} << 20;

/// How a case ran at one batch and sequence.
struct LimitTry {
  bool fits = false;
  int64_t peak_bytes = 0;  ///< of tensors, as the meter read it; 0 where it failed
  /// Host memory that the process took meanwhile: tensors on a CPU, libraries, the allocator's
  /// cache.
  std::optional<int64_t> process_bytes{};
  std::string failure;  ///< in words; empty where it ran
};

struct FoundLimit {
  Case at;                   ///< the largest that fits, or the smallest there is where none does
  std::string skip_reason;   ///< why nothing was searched
  int64_t largest = 0;       ///< 0: none fits
  int64_t needed_bytes = 0;  ///< predicted, at the largest
  int64_t needed_bytes_beyond = 0;       ///< and one step beyond; 0 where that was not looked at
  std::optional<LimitTry> tried;         ///< with --confirm: at the largest
  std::optional<LimitTry> tried_beyond;  ///< and one step beyond, which must not fit
};

/// Searches along `axis`, once for cases that differ in nothing else.
std::vector<FoundLimit> find_limits(const std::vector<Case>& cases, LimitAxis axis,
                                    const MemoryBudget& budget);

/// Runs the work at the largest that was found, and one step beyond, within the budget.
void confirm(FoundLimit& found, LimitAxis axis, const MemoryBudget& budget,
             const instruments::Device& device, uint64_t seed);

/// Searches, confirms where asked to, and prints a table or, with --benchmark_format=json, a
/// document. Returns ExitCode::failed where a try contradicts the prediction.
console::ExitCode run_find_limit(const Options& options, const Plan& plan,
                                 const instruments::Device& device);

/// What --dry-run prints: costs and predicted memory of every case, and whether it fits; a table,
/// or with --benchmark_format=json the exact figures, device and commit. Allocates no tensor.
std::string dry_run_text(const Options& options, const Plan& plan,
                         const instruments::Device& device);

}  // namespace tinyllama::harness

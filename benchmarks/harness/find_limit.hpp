// --find-limit: the largest batch or sequence of each case whose predicted memory fits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/memory_check.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

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
  /// The largest that fits, or the smallest there is where none does; one with a skip_reason was
  /// not searched.
  Case at;
  int64_t largest = 0;                     ///< 0: none fits
  int64_t needed_bytes = 0;                ///< predicted, at the largest
  int64_t needed_bytes_beyond = 0;         ///< and one step beyond; 0 where that was not looked at
  std::optional<LimitTry> tried{};         ///< with --confirm: at the largest
  std::optional<LimitTry> tried_beyond{};  ///< and one step beyond, which must not fit
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

}  // namespace tinyllama::harness

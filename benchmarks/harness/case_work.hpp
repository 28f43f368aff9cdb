// The work of one case on its way to the timer: built, metered, and kept from ending the program
// when it throws.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/measure.hpp"

namespace tinyllama::harness {

/// Long enough for clocks and caches to settle in cases of microseconds, unnoticeable in cases of
/// seconds.
inline constexpr double kWarmUpSeconds = 0.05;

/// The user's limit of host memory, for as long as it lives, and then again what was before; 0:
/// none.
class AllocationLimit {
 public:
  explicit AllocationLimit(int64_t bytes);
  ~AllocationLimit();
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;

 private:
  int64_t before_;
};

/// Runs `step` with this limit of host memory (0: none; it does not hold on a GPU) and returns in
/// words what it threw; empty if nothing.
std::string failure_of(const instruments::Device& device, int64_t memory_limit_bytes,
                       const std::function<void()>& step);

struct CaseWork {
  std::unique_ptr<WorkItem> item;
  int64_t foreign_bytes = 0;     ///< live before this case, and not its own
  int64_t build_peak_bytes = 0;  ///< while the case was made
};

/// `weights`: null where they are drawn from the seed. Throws what the component's build throws.
CaseWork build_work(const instruments::Device& device, const Case& planned, uint64_t seed,
                    const Weights* weights);

Metering meter_work(const instruments::Device& device, const Case& planned, const CaseWork& work);

/// The formula's FLOPs against those that the profiler counted in the work itself: what differs, or
/// nothing. Says nothing where the profiler met operators that it does not know.
std::string wrong_flops(const Case& planned, const Metering& metering);

}  // namespace tinyllama::harness

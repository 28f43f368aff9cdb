// The engine behind every time of the suite: builds, warms up, meters and times one piece of work,
// and what a set of samples says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "benchmarks/instruments/operator_profile.hpp"
#include "benchmarks/instruments/timer.hpp"

namespace tinyllama::harness {

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

/// A case's work item with its inputs and weights.
struct CaseWork {
  std::unique_ptr<WorkItem> item;
  int64_t other_bytes = 0;       ///< live before this case, and not its own
  int64_t build_peak_bytes = 0;  ///< while the case was made
};

/// `weights`: null where they are drawn from the seed. Throws what the component's build throws.
CaseWork build_work(const instruments::Device& device, const Case& test_case, uint64_t seed,
                    const Weights* weights);

/// Makes caches cold before an iteration by writing twice the last-level cache's size.
class CacheFlusher {
 public:
  explicit CacheFlusher(const instruments::Device& device);
  /// A GPU's stream keeps the order: what follows is launched while it is busy, as in warm runs.
  void flush();
  int64_t bytes() const { return buffer_.numel(); }

 private:
  instruments::Device device_;
  std::unique_ptr<uint8_t[]> host_;
  at::Tensor buffer_;
};

/// How many iterations are timed: until the minimum time, then until the precision is reached; at
/// least one.
struct TimingGoal {
  double min_seconds = 0;  ///< of the samples together
  int64_t most_iterations = std::numeric_limits<int64_t>::max();
  /// steadiness() of the samples; 0: not asked for.
  double precision = 0;
  /// When the precision is given up, and when timing ends in any case, preparation included.
  instruments::TimePoint precision_deadline = instruments::TimePoint::max();
  instruments::TimePoint deadline = instruments::TimePoint::max();
};

/// Processor time of this thread until now.
double thread_cpu_seconds();

struct Timing {
  std::vector<double> seconds;  ///< of each sample an iteration, in their order
  int64_t runs = 1;             ///< iterations of a sample
  double cpu_seconds = 0;       ///< of this thread, an iteration, without its preparation
};

/// Iterations of a sample: as many as take 50 us, since an event is exact to about half a
/// microsecond. `seconds`: of an iteration.
int64_t runs_of_a_gpu_sample(double seconds);

/// prepare() runs before each sample, untimed, and after it `flusher`, where there is one. Where
/// the work allows it, and not with cold caches, a GPU's sample is several iterations.
Timing time_until(const instruments::Device& device, WorkItem& item, CacheFlusher* flusher,
                  const TimingGoal& goal);

/// Whether the GPU waits for the host: its work takes less than nine tenths of the time, so that a
/// faster host would make the case faster.
bool waits_for_host(double seconds, double device_seconds);

/// Long enough for clocks and caches to settle in cases of microseconds, unnoticeable in cases of
/// seconds.
inline constexpr double kWarmUpSeconds = 0.05;

/// Runs iterations for at least `min_seconds` and until two in a row make equally many allocations
/// and the allocator asks the system for nothing more, but 10 at most for the latter; `max_seconds`
/// ends it in any case. Returns seconds of the last.
double warm_up(const instruments::Device& device, WorkItem& item, double min_seconds,
               double max_seconds);

/// What iterations of their own, never timed, tell about a work item.
struct Metering {
  int64_t peak_bytes = 0;   ///< of every tensor that the case keeps and makes
  int64_t allocations = 0;  ///< an iteration
  int64_t operators = 0;    ///< an iteration
  instruments::OperatorProfile profile;
  /// Largest scratch of libraries; nothing where it is among the tensors.
  std::optional<int64_t> library_scratch_bytes{};
};

/// `other_bytes`: what was live before the item was built and is not its own.
Metering meter(const instruments::Device& device, WorkItem& item, int64_t other_bytes);
Metering meter_work(const instruments::Device& device, const Case& test_case, const CaseWork& work);

/// The formula's FLOPs against those that the profiler counted in the work itself: what differs, or
/// nothing. Says nothing where the profiler met operators that it does not know.
std::string wrong_flops(const Case& test_case, const Metering& metering);

double mean(const std::vector<double>& values);
/// Mean of the two middle values where their number is even. Throws std::invalid_argument for no
/// values.
double median(std::vector<double> values);
/// Of a sample: over n - 1. At least two values.
double standard_deviation(const std::vector<double>& values);

struct Interval {
  double low = 0;
  double high = 0;
};

/// The 95 % interval of a case's time: Student's t over the logarithms of its repetitions' medians,
/// which are the unit because samples of one repetition resemble each other more than those of the
/// next. Nothing for a single one. `tinyllama_tools.calibrate.coverage` measures how often it
/// covers.
std::optional<Interval> repetitions_interval(const std::vector<double>& seconds);

/// How well samples of one stretch of time, in their order, tell its median: half the 95 % interval
/// of the medians of ten batches (or of fewer samples, at least 6; else nothing) over the median,
/// widened by the autocorrelation that is left between batches (batch means: Schruben 1983). It
/// says nothing of how far a later stretch may be from this one.
std::optional<double> steadiness(const std::vector<double>& in_order);

/// At most `most` of the values, evenly spaced, in their order.
std::vector<double> thinned(const std::vector<double>& values, size_t most);

}  // namespace tinyllama::harness

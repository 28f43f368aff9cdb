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

/// Sets the limit of host memory (0: none) while it lives, and the earlier one again at its end.
class AllocationLimit {
 public:
  explicit AllocationLimit(int64_t bytes);
  ~AllocationLimit();
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;

 private:
  int64_t before_;
};

/// Runs `step` under this limit of host memory (0: none; not applied on a GPU). Returns the message
/// of what it threw; empty if nothing.
std::string failure_of(const instruments::Device& device, int64_t memory_limit_bytes,
                       const std::function<void()>& step);

/// A case's work item with its inputs and weights.
struct CaseWork {
  std::unique_ptr<WorkItem> item;
  int64_t other_bytes = 0;       ///< live before this case was built
  int64_t build_peak_bytes = 0;  ///< peak while the case was built
};

/// `weights`: null where they are drawn from the seed. Throws what the component's build throws.
CaseWork build_work(const instruments::Device& device, const Case& test_case, uint64_t seed,
                    const Weights* weights);

/// Makes caches cold before an iteration by writing twice the last-level cache's size.
class CacheFlusher {
 public:
  explicit CacheFlusher(const instruments::Device& device);
  /// On a GPU it is queued on the stream: what follows is launched while it still runs, so that the
  /// launches cost as little as with warm caches.
  void flush();
  int64_t bytes() const { return buffer_.numel(); }

 private:
  instruments::Device device_;
  std::unique_ptr<uint8_t[]> host_;
  at::Tensor buffer_;
};

/// When timing ends: after the minimum time, and then once the precision is reached. At least one
/// iteration is timed.
struct TimingGoal {
  double min_seconds = 0;  ///< of the samples together
  int64_t most_iterations = std::numeric_limits<int64_t>::max();
  /// Wanted steadiness() of the samples; 0: none.
  double precision = 0;
  /// Until when to go on for the precision, and when to end in any case. Both count preparation.
  instruments::TimePoint precision_deadline = instruments::TimePoint::max();
  instruments::TimePoint deadline = instruments::TimePoint::max();
};

/// Processor time of this thread until now.
double thread_cpu_seconds();

struct Timing {
  std::vector<double> seconds;  ///< of an iteration, sample by sample
  int64_t runs = 1;             ///< iterations in a sample
  double cpu_seconds = 0;       ///< of this thread for an iteration, without preparation
};

/// How many iterations a GPU's sample has: as many as take 50 us, because an event is exact to
/// about half a microsecond. `seconds`: of one iteration.
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

/// What separate, untimed iterations of a work item are measured for.
struct Metering {
  int64_t peak_bytes = 0;   ///< of all tensors that the case holds or creates
  int64_t allocations = 0;  ///< in an iteration
  int64_t operators = 0;    ///< in an iteration
  instruments::OperatorProfile profile;
  /// Largest scratch memory of libraries; nothing where it is counted with the tensors.
  std::optional<int64_t> library_scratch_bytes{};
};

/// `other_bytes`: live before the item was built, and not counted.
Metering meter(const instruments::Device& device, WorkItem& item, int64_t other_bytes);
Metering meter_work(const instruments::Device& device, const Case& test_case, const CaseWork& work);

/// Compares the formula's FLOPs with those that the profiler counted while the work ran. Returns
/// the difference in words; empty where there is none, or where the profiler met operators that it
/// cannot count.
std::string wrong_flops(const Case& test_case, const Metering& metering);

double mean(const std::vector<double>& values);
/// Mean of the two middle values where their number is even. Throws std::invalid_argument for no
/// values.
double median(std::vector<double> values);
/// With n - 1 in the denominator. At least two values.
double standard_deviation(const std::vector<double>& values);

struct Interval {
  double low = 0;
  double high = 0;
};

/// The 95 % interval of a case's time: Student's t over the logarithms of its repetitions' medians,
/// which are the unit because samples of one repetition resemble each other more than those of the
/// next. Nothing for a single one. `tinyllama_tools.calibrate.coverage` measures its coverage.
std::optional<Interval> repetitions_interval(const std::vector<double>& seconds);

/// Relative precision of the median of samples that follow each other, by batch means (Schruben
/// 1983): half the 95 % interval of the mean of the medians of ten batches, over the median,
/// widened by the autocorrelation between batches. Fewer than ten samples are their own batches;
/// nothing for fewer than six. It does not say how far the median of a later run may be from this
/// one.
std::optional<double> steadiness(const std::vector<double>& in_order);

/// At most `most` of the values, evenly spaced, in their order.
std::vector<double> thinned(const std::vector<double>& values, size_t most);

}  // namespace tinyllama::harness

// The engine behind every time of the suite: warms one piece of work up, and times its iterations.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/timer.hpp"

namespace tinyllama::harness {

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

/// Whether the GPU waits for the host: its work takes less than nine tenths of the time. On a
/// faster host such a case is faster.
bool waits_for_host(double seconds, double device_seconds);

/// Runs iterations for at least `min_seconds` and until two in a row make equally many allocations
/// and the allocator asks the system for nothing more, but 10 at most for the latter; `max_seconds`
/// ends it in any case. Returns seconds of the last.
double warm_up(const instruments::Device& device, WorkItem& item, double min_seconds,
               double max_seconds);

}  // namespace tinyllama::harness

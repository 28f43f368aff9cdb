// Times work on a device: by its events on a GPU, by the steady clock on a CPU.
#pragma once

#include <c10/core/Event.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

/// Seconds between two points of time, or until now.
inline double seconds_since(TimePoint begin, TimePoint end = Clock::now()) {
  return std::chrono::duration<double>(end - begin).count();
}

/// So many seconds later, or 1e9, which a clock can count.
inline TimePoint later(TimePoint begin, double seconds) {
  return begin + std::chrono::duration_cast<Clock::duration>(
                     std::chrono::duration<double>(seconds < 1e9 ? seconds : 1e9));
}

/// Points of a device's work. Marking one waits for nothing: on a GPU their distances are known
/// when the device has done the work between them.
class Marks {
 public:
  /// Makes room for so many, so that this is not timed.
  explicit Marks(const Device& device, size_t expected = 0);
  /// Marks what follows in the current stream; returns its number, from 0.
  size_t add();
  /// At least 0, although the difference of two of HIP's events may be less
  /// (ROCm/rocm-systems#9375).
  double seconds(size_t begin, size_t end) const;
  /// Forgets all; their events serve again.
  void clear() { count_ = 0; }

 private:
  void make_event();

  c10::Device device_;
  size_t count_ = 0;
  std::vector<TimePoint> times_;    // a CPU's
  std::vector<c10::Event> events_;  // a GPU's, which take longer to make than to record
};

/// Seconds of each of `iterations` calls of `run`; of fewer, but at least one, where `deadline`
/// comes first. `prepare` runs before each call, outside the timed region. On a GPU the calls are
/// queued, and the device is waited for once, at the end. `runs`: so many calls in a row are timed
/// together, and their mean is returned: for work that is too short for the resolution of events.
/// On a GPU, iterations without a time above 0 are left out (until_timed).
std::vector<double> time_iterations(const Device& device, int64_t iterations,
                                    const std::function<void()>& prepare,
                                    const std::function<void()>& run,
                                    TimePoint deadline = TimePoint::max(), int64_t runs = 1);

/// What `take` returns, without what is not above 0: events that lie at one moment, or in the wrong
/// order, have timed nothing, and would be the fastest of all. Takes again while nothing is left,
/// and throws std::runtime_error at last.
std::vector<double> until_timed(const std::function<std::vector<double>()>& take);

/// What a timed iteration takes with nothing in it, the median of many. It is a part of every
/// sample, and nobody subtracts it: neither nvbench nor Triton's do_bench do, and with work between
/// them the two readings overlap it.
double seconds_of_empty_pair(const Device& device);

}  // namespace tinyllama::instruments

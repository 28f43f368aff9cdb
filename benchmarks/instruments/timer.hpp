// Times each iteration of a piece of work: device events on a GPU, the steady clock on a CPU.
#pragma once

#include <chrono>
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

/// Seconds of each of `iterations` calls of `run`; of fewer, but at least one, where `deadline`
/// comes first. `prepare` runs before each call, outside the timed region. On a GPU the calls are
/// queued between pairs of events and the device is waited for once, at the end. `runs`: so many
/// calls in a row are timed together on a GPU, and their mean is returned: for work that is too
/// short for the resolution of events.
std::vector<double> time_iterations(const Device& device, int64_t iterations,
                                    const std::function<void()>& prepare,
                                    const std::function<void()>& run,
                                    TimePoint deadline = TimePoint::max(), int64_t runs = 1);

}  // namespace tinyllama::instruments

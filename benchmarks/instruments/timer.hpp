// Times each iteration of a piece of work: device events on a GPU, the steady clock on a CPU.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments {

using TimePoint = std::chrono::steady_clock::time_point;

/// Seconds of each of `iterations` calls of `run`, or of fewer, and at least one, where the host
/// reaches `deadline` before; `prepare` runs before each call, outside the timed region. On a GPU
/// the calls are queued between pairs of events and the device is waited for once, at the end.
std::vector<double> time_iterations(const Device& device, int64_t iterations,
                                    const std::function<void()>& prepare,
                                    const std::function<void()>& run,
                                    TimePoint deadline = TimePoint::max());

}  // namespace tinyllama::instruments

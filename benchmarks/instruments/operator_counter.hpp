// How many operators the dispatcher runs for a piece of work, and on a GPU how many kernels it
// launches.
#pragma once

#include <cstdint>
#include <functional>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments {

/// Operators that pass through libtorch's dispatcher while `work` runs, on any thread, those that
/// other operators call included.
int64_t count_operators(const std::function<void()>& work);

/// Kernels launched on the GPU while `work` runs, as Kineto records them. Throws std::logic_error
/// on a CPU.
int64_t count_kernels(const Device& device, const std::function<void()>& work);

}  // namespace tinyllama::instruments

// What Kineto, libtorch's profiler, records of a piece of work: FLOPs of its matrix products, and
// on a GPU the kernels it launches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments {

struct OperatorProfile {
  /// FLOPs of the matrix products, counted by Kineto from the shapes of their operands: a
  /// multiply-add is 2. Independent of the formulas in model/cost.hpp, which it proves.
  int64_t product_flops = 0;
  /// Operators, sorted, that Kineto counts no products for and that are not known to have none:
  /// product_flops may lack theirs.
  std::vector<std::string> unknown_operators;
  /// Kernels launched on the GPU; nothing on a CPU.
  std::optional<int64_t> kernels;
};

/// Runs `work` once under the profiler; not to be timed. Throws what `work` throws.
OperatorProfile profile_operators(const Device& device, const std::function<void()>& work);

}  // namespace tinyllama::instruments

// Times the contenders of a case by turns.
#pragma once

#include <cstdint>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "benchmarks/kernels/kernel_cases.hpp"

namespace tinyllama::kernel_benchmark {

struct Timing {
  double seconds = 0;  ///< median over rounds of a round's median
  double ratio = 1;    ///< median over rounds of these seconds over ours in the same round
};

/// One for each contender. In every round each has its turn, in random order.
std::vector<Timing> take_turns(const instruments::Device& device, const KernelCase& one,
                               int64_t rounds);

}  // namespace tinyllama::kernel_benchmark

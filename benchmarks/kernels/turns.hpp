// Times the contenders of a case by turns, and the bandwidth that the machine has for as many
// bytes.
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

/// Bytes per second of a triad (2 reads, 1 write, ordinary stores) over arrays of `bytes` together,
/// that the pass before left where they are: what a kernel with this working set can hope for.
double triad_rate(const instruments::Device& device, int64_t bytes, int64_t rounds);

}  // namespace tinyllama::kernel_benchmark

// Times that all ranks take together: iterations that start together, and the rounds in which
// everything that is compared is measured once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"

namespace tinyllama::distributed {

/// What the ranks do in an iteration.
struct RankWork {
  std::function<void()> run;
  std::function<void()> prepare = [] {};  ///< before each iteration, untimed
  int64_t calls = 1;                      ///< of run() that are timed as one iteration
  bool first_rank_only = false;           ///< the others wait, without using a processor
};

/// What one rank measured.
struct RankTimes {
  std::vector<double> seconds;  ///< a call in each iteration; none where the rank had no part
  /// Mean of a call over all threads of this process; waiting for other ranks before an iteration,
  /// and what prepares it, are left out.
  double cpu_seconds = 0;
};

/// instruments::time_iterations on all ranks, which start each iteration together. All of them have
/// to call it, with the same arguments.
RankTimes time_together(ProcessGroup& group, const RankWork& work, int64_t iterations);

/// How many iterations of `seconds` each take `wanted_seconds`, 1 to 10^6: the clocks' readings
/// differ, rank 0's count.
int64_t agreed_iterations(ProcessGroup& group, double wanted_seconds, double seconds);

/// Seconds of a round: [rank][iteration]. A rank without a part in it has none.
using RoundSamples = std::vector<std::vector<double>>;

/// What every rank measured, on all of them. Ranks may have different numbers of samples. All of
/// them have to call it.
RoundSamples gather_samples(ProcessGroup& group, const std::vector<double>& mine);

/// Mean over the iterations of the slowest rank's time; of the mean over the ranks that took part.
/// Throws std::invalid_argument where there is no sample.
double slowest_seconds(const RoundSamples& round);
double mean_seconds(const RoundSamples& round);

/// 0 to count - 1 in an order drawn from the two numbers, the same with every standard library: all
/// ranks draw alike, without talking to each other.
std::vector<size_t> random_order(size_t count, uint64_t seed, uint64_t round);

/// Whether a signal asked any rank to stop. All ranks have to call it, and get the same answer.
bool any_rank_interrupted(ProcessGroup& group);

/// A line on rank 0's standard error.
void say(const ProcessGroup& group, const std::string& text);

}  // namespace tinyllama::distributed

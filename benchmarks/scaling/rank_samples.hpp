// What every rank measured, brought together on all of them.
#pragma once

#include <vector>

#include "benchmarks/distributed/process_group.hpp"

namespace tinyllama::scaling {

/// Seconds of a round: [rank][step]. A rank without a part in it has none.
using RoundSamples = std::vector<std::vector<double>>;

/// Ranks may have different numbers of samples. All of them have to call it.
RoundSamples gather_samples(distributed::ProcessGroup& group, const std::vector<double>& mine);

/// Mean over the steps of the slowest rank's time; of the mean over the ranks that took part.
/// Throws std::invalid_argument where there is no sample.
double slowest_seconds(const RoundSamples& round);
double mean_seconds(const RoundSamples& round);

}  // namespace tinyllama::scaling

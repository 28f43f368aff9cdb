// Cases timed against each other: a slice of each a round, so that load that comes and goes meets
// all of them. Rows of a run are minutes apart.
#pragma once

#include <functional>
#include <vector>

#include "benchmarks/harness/case.hpp"

namespace tinyllama::harness {

struct Options;

/// Of each case in its order, seconds of an iteration in every round; nothing where that was not
/// possible.
using SecondsOfRounds = std::vector<std::vector<double>>;
using MeasureInterleaved = std::function<SecondsOfRounds(const std::vector<const Case*>&)>;

/// All are built and warmed up, then timed in slices of 20 ms or an iteration, one of each a round
/// in random order: nine rounds, or as many as `options.max_seconds_per_case` has time for.
/// Nothing where they do not fit into memory together, a round would take longer than that, or one
/// fails. Proofs are the caller's.
SecondsOfRounds time_cases_interleaved(const instruments::Device& device,
                                       const std::vector<const Case*>& cases,
                                       const Options& options, const Weights* weights = nullptr);

}  // namespace tinyllama::harness

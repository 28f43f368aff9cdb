// Cases timed against each other: a slice of each a round, so that load that comes and goes meets
// all of them. Rows of a run are minutes apart.
#pragma once

#include <functional>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/runner.hpp"

namespace tinyllama::harness {

/// Of each case in its order, seconds of an iteration in every round; nothing where that was not
/// possible.
using SecondsOfRounds = std::vector<std::vector<double>>;
using MeasureInterleaved = std::function<SecondsOfRounds(const std::vector<const Case*>&)>;

/// All are built and warmed up, then timed in slices of 20 ms or an iteration, one of each a round
/// in random order: nine rounds, or as many as `settings.max_seconds_per_case` has time for.
/// Nothing where they do not fit into memory together, a round would take longer than that, or one
/// fails. Proofs are the caller's.
SecondsOfRounds time_cases_interleaved(const instruments::Device& device,
                                       const std::vector<const Case*>& cases,
                                       const RunSettings& settings);

}  // namespace tinyllama::harness

// Times cases against each other in rounds, a slice of each in every round, so that load that comes
// and goes meets all of them. Rows of a run, in contrast, are minutes apart.
#pragma once

#include <functional>
#include <vector>

#include "benchmarks/harness/case.hpp"

namespace tinyllama::harness {

struct Options;

/// Seconds of an iteration, by case and round; empty where the cases could not be timed together.
using SecondsOfRounds = std::vector<std::vector<double>>;
using MeasureInterleaved = std::function<SecondsOfRounds(const std::vector<const Case*>&)>;

/// Builds and warms up all cases, then times them in rounds: a slice of 20 ms, or of an iteration,
/// of each in random order. There are nine rounds, or as many as fit into
/// `options.max_seconds_per_case`. Empty where the cases do not fit into memory together, one
/// round would take longer than that, or one case fails. The caller has proved the cases.
SecondsOfRounds time_cases_interleaved(const instruments::Device& device,
                                       const std::vector<const Case*>& cases,
                                       const Options& options, const Weights* weights = nullptr);

}  // namespace tinyllama::harness

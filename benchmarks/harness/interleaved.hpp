// Cases timed side by side, so that a machine that changes changes for all of them.
#pragma once

#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/runner.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// Seconds of an iteration of each case: all are built and warmed up, then timed in short slices,
/// one of each a round; medians over the rounds, five or as many as `settings.max_seconds_per_case`
/// has time for. Nothing where they do not fit into memory together, a round would take longer than
/// that, or one fails. Proofs are the caller's.
std::vector<double> time_cases_interleaved(const instruments::Device& device,
                                           const std::vector<const Case*>& cases,
                                           const RunSettings& settings);

}  // namespace tinyllama::harness

// Times cases against each other in rounds, a slice of each in every round, so that load that comes
// and goes meets all of them; rows of a run, in contrast, are minutes apart. From the rounds follow
// the speedups of variants over the baseline at the same point.
#pragma once

#include <functional>
#include <vector>

#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::harness {

/// Seconds of an iteration, by case and round; empty where the cases could not be timed together.
using SecondsOfRounds = std::vector<std::vector<double>>;
using MeasureInterleaved = std::function<SecondsOfRounds(const std::vector<const Case*>&)>;

/// Builds and warms up all cases, then times them in rounds: a slice of 20 ms, or of an iteration,
/// of each in random order. There are nine rounds, or as many as fit into
/// `options.max_seconds_per_case`. Empty where the cases do not fit into memory together, one
/// round would take longer than that, or one case fails. The caller has proved the cases.
SecondsOfRounds time_cases_interleaved(const instruments::Device& device,
                                       const std::vector<const Case*>& cases,
                                       const Options& options);

/// Adds `speedup` to the measured rows of a case, except to those of a spread (stddev, cv): the
/// time of the baseline of the same component, pass and point over the case's own. With `measure`,
/// all variants of a point are timed interleaved with the baseline: the speedup is the median of
/// the rounds' ratios, and `speedup_low` and `speedup_high` are median_interval() of these. Without
/// it, or where it returned nothing, the speedup is the ratio of the rows' medians, which are
/// minutes apart, and has no interval. The baseline's is 1. Where the run has no such baseline,
/// nothing is added.
void add_speedups(const std::vector<Case>& cases, std::vector<CaseResult>& results,
                  const MeasureInterleaved& measure = {});

}  // namespace tinyllama::harness

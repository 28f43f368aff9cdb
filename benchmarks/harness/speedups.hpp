// Speedup of variants over the baseline at the same point, where a run has both.
#pragma once

#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/interleaved.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::harness {

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

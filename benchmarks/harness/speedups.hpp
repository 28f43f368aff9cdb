// What a variant gains over the baseline at the same point, where a run has both.
#pragma once

#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/interleaved.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::harness {

/// Gives the measured rows of a case its `speedup`, but for those of a spread: the time of the
/// baseline at the same component, pass and point over its own. With `measure` all variants of a
/// point are timed against the baseline: the speedup is the median over the rounds' ratios, and
/// `speedup_low` and `speedup_high` are its interval (median_interval(), of the ratios). Without,
/// or where that was not possible, it is of the medians of the rows, which are minutes apart, and
/// has no interval; that of the baseline is 1. Rows have none where the run has no such baseline.
void add_speedups(const std::vector<Case>& cases, std::vector<CaseResult>& results,
                  const MeasureInterleaved& measure = {});

}  // namespace tinyllama::harness

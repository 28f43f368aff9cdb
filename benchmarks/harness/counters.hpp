// From seconds an iteration to the numbers people read: time x cost formulas x peaks. The README
// says what each means.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/measured_peaks.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::harness {

/// Above this share of a peak the time, the count or the peak is wrong; up to it, the peak was
/// measured a little too low.
inline constexpr double kLargestShare = 1.05;

/// What an iteration of `seconds` does a second; TFLOPS are of model_flops, whatever the variant
/// computes.
Counters rate_counters(const Case& test_case, double seconds);

/// Counters that do not depend on time: costs, and what the metered iteration said.
Counters fixed_counters(const Case& test_case, const Metering& metering);

/// MFU_percent, MFU_causal_percent, peak_percent and roof_percent of one iteration a second; those
/// of more are in proportion. Throws std::out_of_range where a peak that it takes is not known.
Counters shares(const Case& test_case, const MeasuredPeaks& peaks);

/// Gives every measured row of a case its shares of these peaks, in place of what it had. Where the
/// fastest repetition is above 105 % of a measured peak, or above the datasheet's, the rows have
/// none, and say why as "above_peak".
void add_shares(const Case& test_case, const MeasuredPeaks& peaks, CaseResult& result);

/// Gives every measured row its `speedup`: the median time of `baseline` at the same component,
/// pass and point over the row's own time. Rows have none where the run has no such baseline.
void add_speedups(const std::vector<Case>& cases, std::vector<CaseResult>& results);

/// What needs other rows, at the end of a run: speedups, and shares, since a peak that was measured
/// again counts for every row.
void add_relative_counters(const std::vector<Case>& cases, const MeasuredPeaks& peaks,
                           std::vector<CaseResult>& results);

}  // namespace tinyllama::harness

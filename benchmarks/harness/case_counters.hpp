// The counters of a case: time x cost formulas x peaks, and what was metered and read from sensors;
// docs/counters.md says what each means.
#pragma once

#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/metering.hpp"
#include "benchmarks/harness/outcome.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/timing.hpp"
#include "benchmarks/instruments/measured_peaks.hpp"
#include "benchmarks/instruments/system_sampler.hpp"

namespace tinyllama::harness {

/// What an iteration of `seconds` does a second; TFLOPS are of model_flops, whatever the variant
/// computes.
Counters rate_counters(const Case& test_case, double seconds);

/// Counters that do not depend on time: costs, and what the metered iteration said.
Counters fixed_counters(const Case& test_case, const Metering& metering);

/// Of a case on a GPU: device_ms, the time of its kernels, and host_bound, where the profiler saw
/// them all, and, where it is not 1, runs_per_sample. None on a CPU.
Counters device_counters(const Metering& metering, const Timing& timing);

/// clock_MHz, temperature_celsius, power_W, joules_per_token, and limited_by_... where something
/// held the clock down; what was not read is absent. `mean_seconds` of an iteration: energy is mean
/// power by the time over which it is the mean.
Counters sensor_counters(const Case& test_case, const instruments::SystemSamples& samples,
                         double mean_seconds);

/// MFU_percent, MFU_causal_percent, peak_percent and roof_percent of one iteration a second; those
/// of more are in proportion. Throws std::out_of_range where a peak that it takes is not known.
Counters shares(const Case& test_case, const instruments::MeasuredPeaks& peaks);

/// Gives every measured row of a case its shares of these peaks, in place of what it had. Where the
/// fastest repetition is above 105 % of a measured peak, or above the datasheet's, the rows have
/// none, and say why as "above_peak".
void add_shares(const Case& test_case, const instruments::MeasuredPeaks& peaks, CaseResult& result);

/// add_shares() of every case, at the end of a run: a peak that was measured again counts for every
/// row.
void add_all_shares(const std::vector<Case>& cases, const instruments::MeasuredPeaks& peaks,
                    std::vector<CaseResult>& results);

}  // namespace tinyllama::harness

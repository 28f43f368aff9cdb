// The counters of a case: time x cost formulas x peaks, and what was metered and read from sensors;
// docs/counters.md says what each means.
#pragma once

#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/metering.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/timing.hpp"
#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/instruments/system_sampler.hpp"

namespace tinyllama::harness {

/// Rates per second of an iteration that takes `seconds`. TFLOPS count model_flops, whatever the
/// variant computes.
Counters rate_counters(const Case& test_case, double seconds);

/// Counters that do not depend on time: costs, and what metering found.
Counters fixed_counters(const Case& test_case, const Metering& metering);

/// On a GPU: device_ms (the time of the kernels) and host_bound (waits_for_host()), where the
/// profiler saw all kernels, and runs_per_sample, where it is not 1. None on a CPU.
Counters device_counters(const Metering& metering, const Timing& timing);

/// clock_MHz, temperature_celsius, power_W, joules_per_token, and limited_by_... where something
/// held the clock down; what could not be read is absent. `mean_seconds`: mean time of an
/// iteration, which times the mean power gives the energy.
Counters sensor_counters(const Case& test_case, const instruments::SystemSamples& samples,
                         double mean_seconds);

/// MFU_percent, MFU_causal_percent, peak_percent and roof_percent at a rate of one iteration per
/// second; at other rates they are proportional. Throws std::out_of_range where a peak that they
/// need was not measured.
Counters shares(const Case& test_case, const instruments::MeasuredPeaks& peaks);

/// Replaces the shares in every measured row of a case by those of these peaks. Where the fastest
/// repetition is above 105 % of a measured peak, or above the datasheet's, the rows get the reason
/// as "above_peak" instead.
void add_shares(const Case& test_case, const instruments::MeasuredPeaks& peaks, CaseResult& result);

/// add_shares() of every case, at the end of a run: a peak that was measured again counts for every
/// row.
void add_all_shares(const std::vector<Case>& cases, const instruments::MeasuredPeaks& peaks,
                    std::vector<CaseResult>& results);

}  // namespace tinyllama::harness

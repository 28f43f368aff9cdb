// What a plan is held against, and its rows that measure the machine.
#pragma once

#include "benchmarks/harness/plan.hpp"
#include "benchmarks/instruments/measured_peaks.hpp"

namespace tinyllama::harness {

struct Outcome;

/// Each type of GEMMs that the plan's rows are of, with the shapes that its cases run; the largest
/// traffic of a case, or memory's where a row is of it.
instruments::PeaksNeeded peaks_needed(const Plan& plan);

/// Measures a row of Plan::peak_cases once and adds it as a repetition. Its time is that of one
/// GEMM of the row's shape, or without a shape that of 10^9 FLOPs or 10^9 bytes at the measured
/// rate. A higher rate than before becomes the peak.
void measure_peak_case(const PeakCase& peak, instruments::MeasuredPeaks& peaks,
                       const instruments::Device& device, Outcome& outcome);

}  // namespace tinyllama::harness

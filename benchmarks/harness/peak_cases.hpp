// The rows peak/...: the denominators, measured once more as cases of their own, and what each
// product of the model can reach at its own shape. What throws or does not fit fails or is skipped
// alone.
#pragma once

#include "benchmarks/harness/peak_book.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// One repetition of a row of Plan::peak_cases. Its time is that of 10^9 FLOPs, or of 10^9 bytes,
/// at the rate measured now, and with a shape of one such matrix multiplication; a better rate than
/// before becomes the peak.
void measure_peak_case(const PeakCase& peak, PeakBook& peaks, const instruments::Device& device,
                       Outcome& outcome);

}  // namespace tinyllama::harness

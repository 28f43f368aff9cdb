// The rows peak/...: the denominators, measured once more as cases of their own, and what each
// product of the model can reach at its own shape. What throws or does not fit fails or is skipped
// alone.
#pragma once

#include "benchmarks/harness/peak_book.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// Registers one of Plan::peak_cases. A row's time is that of 10^9 FLOPs, or of 10^9 bytes, at the
/// rate measured in that repetition, and with a shape of one such product; a better rate than
/// before becomes the peak.
void register_peak_case(const PeakCase& peak, PeakBook& peaks, const instruments::Device& device);

}  // namespace tinyllama::harness

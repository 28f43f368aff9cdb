// The rows peak/...: the denominators, measured once more as cases of their own, and what each
// product of the model can reach at its own shape.
#pragma once

#include "benchmarks/harness/peak_book.hpp"

namespace tinyllama::harness {

/// Registers one of Plan::peak_cases. A row's time is that of 10^9 FLOPs, or of 10^9 bytes, at the
/// rate measured in that repetition, and with a shape of one such product; a better rate than
/// before becomes the peak.
void register_peak_case(const PeakCase& peak, PeakBook& peaks);

}  // namespace tinyllama::harness

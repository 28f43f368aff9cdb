// The rows peak/gemm/<type> and peak/bandwidth: the denominators, measured once more as cases of
// their own.
#pragma once

#include <string>

#include "benchmarks/harness/peak_book.hpp"

namespace tinyllama::harness {

/// Registers one of Plan::peak_cases. A row's time is that of 10^9 FLOPs, or of 10^9 bytes, at the
/// rate measured in that repetition; a better rate than before becomes the peak.
void register_peak_case(const std::string& name, PeakBook& peaks);

}  // namespace tinyllama::harness

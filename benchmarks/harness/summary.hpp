// What people read at the end: one table a component showing only the parameters that vary, and the
// sum of the parts of the step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/measured_case.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/sum_of_parts.hpp"

namespace tinyllama::harness {

/// A row peak/...: its best repetition.
struct BestPeak {
  double value;
  const char* counter;  ///< "TFLOPS" or "GB_per_second"
  const char* unit;     ///< "TFLOP/s" or "GB/s"
};

/// Nothing for a row that is no peak, was skipped or failed.
std::optional<BestPeak> best_peak(const CaseResult& result);

/// Tables of every component, then peaks, skipped and failed cases with their reasons, then the sum
/// of the parts of the step.
std::string summary(const std::vector<Case>& cases, const std::vector<CaseResult>& results,
                    const PartsOfStep& step, const MeasureInterleaved& measure = {});

}  // namespace tinyllama::harness

// What people read at the end: one table a component showing only the parameters that vary, and the
// closure of the step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/closure.hpp"
#include "benchmarks/harness/result_document.hpp"

namespace tinyllama::harness {

/// A measured case: its median repetition.
struct MeasuredCase {
  const Case* planned;
  double seconds;  ///< median over repetitions of the mean over iterations
  std::optional<double>
      spread;  ///< standard deviation over repetitions / mean; nothing for a single one
  Json entry;  ///< Google Benchmark's object: median, or the only repetition
};

/// Looks a case's measurement up among its entries; nothing if it was skipped or failed.
std::optional<MeasuredCase> measured_case(const Case& planned, const CaseResult& result);

/// A row peak/...: its best repetition.
struct BestPeak {
  double value;
  const char* counter;  ///< "TFLOPS" or "GB_per_second"
  const char* unit;     ///< "TFLOP/s" or "GB/s"
};

/// Nothing for a row that is no peak, was skipped or failed.
std::optional<BestPeak> best_peak(const CaseResult& result);

/// Tables of every component, then peaks, skipped and failed cases with their reasons, then
/// closure.
std::string summary(const std::vector<Case>& cases, const std::vector<CaseResult>& results,
                    const Closure& closure);

/// The sum of the parts against the whole in percent, a line for each point where all of them were
/// measured; where the whole was measured but no point is complete, says what it needs.
std::string closure_lines(const std::vector<MeasuredCase>& measured, const Closure& closure);

}  // namespace tinyllama::harness

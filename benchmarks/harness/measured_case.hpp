// The measurement of a case as people read it: its median repetition.
#pragma once

#include <optional>
#include <string>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::harness {

struct MeasuredCase {
  const Case* planned;
  double seconds;  ///< median over repetitions of the mean over iterations
  std::optional<double>
      spread;  ///< standard deviation over repetitions / mean; nothing for a single one
  Json entry;  ///< Google Benchmark's object: median, or the only repetition
};

/// Looks a case's measurement up among its entries; nothing if it was skipped or failed.
std::optional<MeasuredCase> measured_case(const Case& planned, const CaseResult& result);

/// "12.3 us", "4.56 ms", "7.890 s"
std::string format_seconds(double seconds);

}  // namespace tinyllama::harness

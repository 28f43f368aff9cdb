// From seconds an iteration to the numbers people read: time x cost formulas x peaks.
#pragma once

#include <map>
#include <string>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/peak_book.hpp"

namespace tinyllama::harness {

using Counters = std::map<std::string, double>;

/// Counters that depend on time. `seconds` of one iteration, `peaks` of this run; the README says
/// what each means.
Counters rate_counters(const Case& planned, double seconds, const PeakBook& peaks);

/// Counters that do not: costs, and what the metered iteration said.
Counters fixed_counters(const Case& planned, const Metering& metering);

}  // namespace tinyllama::harness

// The lines that schedulers' test frameworks look for: a figure each, and how the run ended.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::harness {

/// For every measured case `FOM <case>/<figure> = <value> <unit>`, its median repetition, and of
/// every peak its best one, in the order of the results; then, peaks counted as cases, one of
///   SUCCESS: 12 cases measured[, 1 skipped]
///   FAILED: 1 of 12 cases failed
///   NOTHING MEASURED: 3 cases skipped
///   INTERRUPTED: 2 of 12 cases done
/// `interrupted`: the run ended before it was through all of its `planned` cases.
std::string figures_of_merit(const std::vector<Case>& cases, const std::vector<CaseResult>& results,
                             bool interrupted, size_t planned);

}  // namespace tinyllama::harness

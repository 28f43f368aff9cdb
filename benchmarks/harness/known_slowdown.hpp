// --slow: work that takes longer by a known fraction, by which comparisons are calibrated.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/options.hpp"

namespace tinyllama::harness {

/// The fraction of each case that is slowed, by its name: the last whose expression finds it.
/// Throws std::invalid_argument for an expression that is none or finds no case.
std::map<std::string, double> slowed_cases(const std::vector<KnownSlowdown>& slowdowns,
                                           const std::vector<Case>& cases);

/// The work, which spins after each run for this fraction of it.
std::unique_ptr<WorkItem> slowed(std::unique_ptr<WorkItem> work, const instruments::Device& device,
                                 double fraction);

}  // namespace tinyllama::harness

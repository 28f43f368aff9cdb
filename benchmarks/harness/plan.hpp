// From options to the list of cases: the default grid, or the axes that the user named.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/options.hpp"
#include "model/optimized.hpp"
#include "model/problem_sizes.hpp"

namespace tinyllama::harness {

/// Name under which --components selects the device's peaks.
inline constexpr const char* kPeakComponent = "peak";

struct Plan {
  std::vector<Case> cases;
  /// Types of products ("f32", "bf16", ...) that the cases run in: their peaks are the
  /// denominators.
  std::vector<std::string> product_types;
  /// Rows peak/gemm/<type> and peak/bandwidth, when they were asked for.
  std::vector<std::string> peak_cases;
};

/// Throws std::invalid_argument naming the value and the rule for an unknown size, an impossible
/// workload, an invalid filter, or when nothing is left to run.
/// `traits`: of the device that the cases are for; it says what `optimized` stands for in each, and
/// which variants are refused.
Plan make_plan(const Options& options, const std::vector<Component>& components,
               const std::vector<ProblemSize>& sizes, const DeviceTraits& traits);

}  // namespace tinyllama::harness

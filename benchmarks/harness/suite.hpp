// Runs a plan: registers its cases with Google Benchmark, keeps the journal, writes the result file
// and the summary.
#pragma once

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/sum_of_parts.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// Measures every case of the plan (`--verify only`: proves them). Throws std::invalid_argument for
/// bad options or files, and std::runtime_error when a result cannot be written; what was measured
/// until then is in the journal.
console::ExitCode run_suite(const Options& options, const Plan& plan,
                            const instruments::Device& device, const PartsOfStep& step);

}  // namespace tinyllama::harness

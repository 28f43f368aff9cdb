// --dry-run: what the cases of a plan cost, and whether they fit.
#pragma once

#include <string>

#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/run_options.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// What --dry-run prints: costs and predicted memory of every case, and whether it fits; a table,
/// or with --benchmark_format=json the exact figures, device and commit. Allocates no tensor.
std::string dry_run_text(const Options& options, const Plan& plan,
                         const instruments::Device& device);

}  // namespace tinyllama::harness

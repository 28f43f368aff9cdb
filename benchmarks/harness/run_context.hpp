// What the rows of a file belong to: machine, settings, weights, and how long cases were timed.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// Google Benchmark's own context: date, host, caches, library version.
Json benchmark_context();

/// Google Benchmark's context with ours; peaks are added when they have been measured.
Json run_context(const Options& options, const instruments::Device& device);

/// The options that decide how long a case is timed and which cases are left out, by name without
/// dashes.
Json goals_of(const Options& options);

/// What must be equal in the contexts of a journal and of the run that continues it: JSON pointers
/// without their first `/`.
std::vector<std::string> circumstances_to_keep();

}  // namespace tinyllama::harness

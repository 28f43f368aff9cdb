// The context of a result file: everything that a reader needs to judge, or repeat, the run.
#pragma once

#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/instruments/device.hpp"
#include "model/weights.hpp"

namespace tinyllama::harness {

/// Google Benchmark's own context: date, host, caches, library version.
Json benchmark_context();

/// Google Benchmark's context with ours; peaks are added when they have been measured. `weights`:
/// null where they are drawn from the seed.
Json run_context(const Options& options, const instruments::Device& device, const Weights* weights);

/// Keys of the context in which a journal and the run that continues it must agree.
std::vector<std::string> circumstances_to_keep();

}  // namespace tinyllama::harness

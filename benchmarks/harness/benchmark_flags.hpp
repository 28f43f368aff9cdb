// Google Benchmark's own flags, --benchmark_NAME=VALUE or the variable BENCHMARK_NAME: each is
// honoured, or refused with what to use in its place.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/run_options.hpp"

namespace tinyllama::harness {

/// Takes an argument that begins with --benchmark_, or is --v; false for any other. Throws
/// std::invalid_argument that names flag, value and what is allowed.
bool take_benchmark_flag(const std::string& argument, Options& options);

/// Takes the flags that the environment gives, as BENCHMARK_OUT; the command line's come after
/// them. Throws as above.
void take_benchmark_environment(Options& options);

/// Every flag that is known here, without dashes.
std::vector<std::string> benchmark_flag_names();

/// Hands Google Benchmark what is its own: where cases are repeated, and what is added to the
/// context. All else is set to what a case needs, whatever the environment says: the library reads
/// that by itself. Throws std::invalid_argument naming a flag that it refuses.
void initialize_benchmark(const Options& options);

}  // namespace tinyllama::harness

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

/// Initialises Google Benchmark with the flags that it handles itself: repetitions, and what is
/// added to the context. Its other flags are set to what the suite needs, whatever BENCHMARK_*
/// variables say, because the library reads those by itself. Throws std::invalid_argument naming a
/// flag that it refuses.
void initialize_benchmark(const Options& options);

}  // namespace tinyllama::harness

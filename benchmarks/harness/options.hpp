// The command line of tiny_llama_bench, read and checked as far as text can be.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/run_options.hpp"
#include "model/weights.hpp"

namespace tinyllama::harness {

/// Reads the command line. Prints help and returns nothing for --help; throws
/// std::invalid_argument, whose message names the option, its value and what is allowed, for
/// anything else that is not to be run.
std::optional<Options> parse_options(int argc, const char* const* argv,
                                     const std::vector<std::string>& component_names);

/// Opens the folder that --weights names, and makes its config.json the size `custom`, the only one
/// of the run. Nothing where the option was not given. Throws std::invalid_argument that names the
/// file and the tensor or key for a folder that does not hold a model's weights, and the option
/// with both values where --sizes or an option of size `custom` contradicts the file.
std::optional<Weights> open_weights(Options& options);

}  // namespace tinyllama::harness

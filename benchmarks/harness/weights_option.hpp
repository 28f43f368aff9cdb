// --weights DIR: the folder is opened and checked before anything is planned.
#pragma once

#include <optional>

#include "benchmarks/harness/options.hpp"
#include "model/weights.hpp"

namespace tinyllama::harness {

/// Opens the folder that --weights names, and makes its config.json the size `custom`, the only one
/// of the run. Nothing where the option was not given. Throws std::invalid_argument that names the
/// file and the tensor or key for a folder that does not hold a model's weights, and the option
/// with both values where --sizes or an option of size `custom` contradicts the file.
std::optional<Weights> open_weights(Options& options);

}  // namespace tinyllama::harness

// An optimizer state as in the middle of a training, for benchmarks and the gate.
#pragma once

#include "model/adamw.hpp"
#include "model/parameters.hpp"

namespace tinyllama::components {

/// Fills the moments: first from N(0, 1e-2^2), second 2^-12 (exact in every dtype, and far from
/// where float16 runs out of digits). In the very first AdamW step an update is the sign of its
/// gradient, so that rounding decides where a gradient is nearly 0; from this state on it is a
/// smooth function of it, and two implementations can be compared.
void set_mid_training_state(AdamW& optimizer, TensorInitializer& initializer);

/// Both moments of every parameter.
NamedTensors moments(const AdamW& optimizer);

/// Updated parameters and both moments, named for a comparison.
NamedTensors optimizer_results(const AdamW& optimizer);

}  // namespace tinyllama::components

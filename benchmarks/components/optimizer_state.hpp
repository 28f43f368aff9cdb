// An optimizer state as in the middle of a training, for benchmarks and the gate.
#pragma once

#include "benchmarks/harness/case.hpp"
#include "model/adamw.hpp"
#include "model/parameters.hpp"

namespace tinyllama::components {

/// Fills the moments: first from N(0, 2^-14), a list drawn once over and over, second 2^-12 (exact
/// in every dtype, and far from where float16 runs out of digits). In the very first AdamW step an
/// update is the sign of its gradient, so that rounding decides where a gradient is nearly 0; from
/// this state on it is a smooth function of it, and two implementations can be compared.
void set_mid_training_state(AdamW& optimizer, TensorInitializer& initializer);

/// Puts parameters and moments back to before a first step, by other values at the same addresses:
/// those of `request` where it gives weights, else one list drawn from the seed over and over, for
/// the time of drawing every value would show in a run. The moments as set_mid_training_state().
void begin_anew(AdamW& optimizer, const harness::BuildRequest& request, uint64_t seed);

/// Both moments of every parameter.
NamedTensors moments(const AdamW& optimizer);

/// Updated parameters and both moments, named for a comparison.
NamedTensors optimizer_results(const AdamW& optimizer);

}  // namespace tinyllama::components

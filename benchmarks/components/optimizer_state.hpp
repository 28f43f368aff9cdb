// An optimizer state as in the middle of a training, for benchmarks and the gate.
#pragma once

#include "benchmarks/harness/case.hpp"
#include "model/adamw.hpp"
#include "model/parameters.hpp"

namespace tinyllama::components {

/// Fills the moments: the first with values from N(0, 2^-14), a list that is drawn once and
/// repeated, the second with 2^-12 (exact in every dtype, and far from where float16 runs out of
/// digits). In the very first AdamW step an update is the sign of its gradient, so that rounding
/// decides where a gradient is nearly 0; from this state on it is a smooth function of it, and two
/// implementations can be compared.
void set_mid_training_state(AdamW& optimizer, TensorInitializer& initializer);

/// Overwrites parameters and moments in place by new ones, as before a first step. Parameters: the
/// weights of `request` where it gives any, else a list that is drawn once from the seed and
/// repeated, because drawing every value would take too long. Moments: as in
/// set_mid_training_state().
void begin_anew(AdamW& optimizer, const harness::BuildRequest& request, uint64_t seed);

/// Both moments of every parameter.
NamedTensors moments(const AdamW& optimizer);

/// Updated parameters and both moments, named for a comparison.
NamedTensors optimizer_results(const AdamW& optimizer);

}  // namespace tinyllama::components

// Measures the modes of the training step against each other, round by round.
#pragma once

#include <vector>

#include "benchmarks/scaling/scaling_results.hpp"
#include "benchmarks/scaling/step_modes.hpp"
#include "benchmarks/scaling/step_proof.hpp"

namespace tinyllama::scaling {

/// In each round every mode is run for --min-time, in an order drawn anew, so that the machine's
/// drift hits all alike. An interrupt of any rank ends it after the round. `keep` gets the rows
/// after every round.
void measure_steps(StepSession& session, const ScalingOptions& options,
                   distributed::ProcessGroup& group, const StepProof& proof, const KeepRows& keep);

}  // namespace tinyllama::scaling

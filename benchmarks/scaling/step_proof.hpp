// Proves data-parallel steps before they are timed.
#pragma once

#include <string>

#include "benchmarks/scaling/step_modes.hpp"

namespace tinyllama::scaling {

struct StepProof {
  /// Largest error of a gradient that was summed over the ranks, against one process that has all
  /// samples, over the largest magnitude of that gradient.
  double max_rel_error = 0;
  /// Likewise of a weight's change by one step of a sharded optimizer, beyond one unit in its last
  /// place, over the largest change of that tensor.
  double sharded_error = 0;
  /// Empty, or what is wrong, with the numbers.
  std::string failure;
};

/// Gradients against those of rank 0 alone with the global batch; weights after an update, to the
/// bit the same on all ranks; with a sharded optimizer, its weights against those. All ranks have
/// to call it and get the same answer.
StepProof prove_step(StepSession& session, const ScalingOptions& options,
                     distributed::ProcessGroup& group);

}  // namespace tinyllama::scaling

// The ways in which the ranks run a training step, proved and then measured against each other, so
// that their differences say what communication costs.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "benchmarks/scaling/rows.hpp"

namespace tinyllama::scaling {

enum class StepMode {
  alone,                ///< rank 0 computes a plain step, the others wait without using a processor
  alone_global,         ///< the same with the samples of all ranks: what strong scaling starts from
  local,                ///< every rank computes a plain step of its own
  no_overlap,           ///< gradients are summed after the backward
  overlap,              ///< gradients are summed while the backward runs
  communication,        ///< the sums alone
  sharded,              ///< as overlap, with an optimizer state that is cut over the ranks
  zero3_no_overlap,     ///< parameters cut too, gathered where they are read
  zero3,                ///< the same, while other parts of the model compute
  zero3_communication,  ///< the gathers and sums of such a step alone
  tensor_local,         ///< every rank computes its share of the layers, with nothing communicated
  tensor,               ///< they compute the layers of one batch together
  tensor_communication  ///< the sums of such a step alone
};
std::string_view to_string(StepMode mode);

/// Every mode of one round.
using ModeSamples = std::map<StepMode, RoundSamples>;

/// Efficiency, shares and losses of the ranks' step `mode` on `ranks` ranks, in percent of
/// its time; the losses add up to 100 minus the efficiency. Those whose modes were not measured
/// are left out:
///   weak_efficiency = alone / step, strong_efficiency = alone_global / (ranks * step)
///   local and step are the slowest rank's where nothing else is said
///   overlap = (no_overlap - overlap) / (no_overlap - local), where communication takes any time
///   loss_slower_local = (mean over ranks of local - alone) / step
///   loss_imbalance = (slowest rank's local - mean over ranks of local) / step
///   loss_communication = (step - slowest rank's local) / step
///   loss_small_batch = (alone - alone_global / ranks) / step, strong scaling only
/// zero3 is compared with zero3_no_overlap. The step of `tensor` is one batch for all ranks, always
/// strong scaling: its alone_global is `alone` unless both were measured, its local tensor_local,
/// and
///   loss_slower_local = (mean over ranks of local - alone_global / ranks) / step
harness::Counters scaling_counters(const ModeSamples& round, StepMode mode, int ranks);

/// Rows of the training step. Unless the options leave the proof out, it is measured only after
/// gradients agreed with those of rank 0 alone with the samples of all ranks, weights after an
/// update were the same on all ranks, to the bit, and those of --share's way agreed with them.
/// Returns what is wrong, on all ranks the same; empty where nothing is. The results get the rows
/// after every round.
std::string measure_steps(const ScalingOptions& options, ProcessGroup& group,
                          console::Progress& progress, ScalingResults& results);

}  // namespace tinyllama::scaling

// What the modes of one round say about scaling.
#pragma once

#include <map>

#include "benchmarks/harness/counters.hpp"
#include "benchmarks/scaling/rank_samples.hpp"
#include "benchmarks/scaling/step_modes.hpp"

namespace tinyllama::scaling {

/// Every mode of one round.
using ModeSamples = std::map<StepMode, RoundSamples>;

/// Efficiency, shares and losses of the data-parallel step `mode` on `ranks` ranks, in percent of
/// its time; the losses add up to 100 minus the efficiency. Those whose modes were not measured
/// are left out:
///   weak_efficiency = alone / step, strong_efficiency = alone_global / (ranks * step)
///   communication = (step - local) / step, local and step being the slowest rank's
///   overlap = (no_overlap - overlap) / (no_overlap - local), where communication takes any time
///   loss_slower_local = (mean over ranks of local - alone) / step
///   loss_imbalance = (slowest rank's local - mean over ranks of local) / step
///   loss_communication = (step - slowest rank's local) / step
///   loss_small_batch = (alone - alone_global / ranks) / step, strong scaling only
harness::Counters scaling_counters(const ModeSamples& round, StepMode mode, int ranks);

}  // namespace tinyllama::scaling

#include "benchmarks/scaling/step_counters.hpp"

namespace tinyllama::scaling {
namespace {

constexpr double kPercent = 100.0;

bool has(const ModeSamples& round, StepMode mode) {
  return round.count(mode) > 0;
}

}  // namespace

harness::Counters scaling_counters(const ModeSamples& round, StepMode mode, int ranks) {
  harness::Counters counters;
  if (!has(round, StepMode::alone) || !has(round, mode)) return counters;
  const double alone = slowest_seconds(round.at(StepMode::alone));
  const double step = slowest_seconds(round.at(mode));
  const auto percent = [&](double seconds) { return kPercent * seconds / step; };
  // What a step would take if every rank were as fast as one alone and nothing were communicated.
  double ideal = alone;
  if (has(round, StepMode::alone_global)) {
    ideal = slowest_seconds(round.at(StepMode::alone_global)) / ranks;
    counters["strong_efficiency_percent"] = percent(ideal);
    counters["loss_small_batch_percent"] = percent(alone - ideal);
  } else {
    counters["weak_efficiency_percent"] = percent(ideal);
  }
  if (!has(round, StepMode::local)) return counters;
  const double slowest = slowest_seconds(round.at(StepMode::local));
  const double mean = mean_seconds(round.at(StepMode::local));
  counters["communication_percent"] = percent(step - slowest);
  counters["loss_slower_local_percent"] = percent(mean - alone);
  counters["loss_imbalance_percent"] = percent(slowest - mean);
  counters["loss_communication_percent"] = percent(step - slowest);
  if (mode == StepMode::overlap && has(round, StepMode::no_overlap)) {
    const double plain = slowest_seconds(round.at(StepMode::no_overlap));
    // Where the sums cost nothing there is nothing to hide.
    if (plain > slowest)
      counters["overlap_percent"] = kPercent * (plain - step) / (plain - slowest);
  }
  return counters;
}

}  // namespace tinyllama::scaling

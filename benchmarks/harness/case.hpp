// One point of the plan: which component, pass, variant, size, dtype, batch and sequence.
#pragma once

#include <optional>
#include <string>

#include "benchmarks/harness/component.hpp"
#include "model/memory_prediction.hpp"

namespace tinyllama::harness {

struct Case {
  const Component* component;  ///< outlives every case
  Pass pass;
  std::string size;  ///< name of the problem size, or "custom"
  Workload workload;
  /// Why it is not to be run (a switch that the component lacks, ...); empty for a case to run.
  std::string skip_reason;

  /// <component>/<pass>/<variant>/<size>/<dtype>/batch:<B>/seq:<S>
  std::string name() const;
  Cost cost() const { return component->cost(workload, pass); }
  /// Found at the first call, which takes milliseconds, and then kept: whoever changes the case
  /// afterwards resets known_memory.
  const PredictedMemory& memory() const;

  /// Type of device that it is to run on, for which memory is predicted.
  c10::DeviceType device = c10::DeviceType::CPU;
  mutable std::optional<PredictedMemory> known_memory = std::nullopt;
};

}  // namespace tinyllama::harness

// One point of the plan: which component, pass, variant, size, dtype, batch and sequence.
#pragma once

#include <string>

#include "benchmarks/harness/component.hpp"

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
  MemoryCost memory() const { return component->memory(workload, pass); }
};

}  // namespace tinyllama::harness

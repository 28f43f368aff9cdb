// Names of components in ranges, tables and files; docs/training_files.md lists them.
#pragma once

#include <string>
#include <string_view>

#include "benchmarks/training/phase.hpp"

namespace tinyllama::training {

inline constexpr std::string_view kOtherComponent = "other";
/// Ranges of a whole step, which TensorBoard looks for, begin like this.
inline constexpr std::string_view kStepRangePrefix = "ProfilerStep#";

/// Whether a range marks a step or a phase of it, and not a part of the model.
inline bool is_structural_range(std::string_view name) {
  return name.starts_with(kStepRangePrefix) || name == to_string(Phase::forward) ||
         name == to_string(Phase::backward);
}

}  // namespace tinyllama::training

// What a run leaves: its steps, and what follows from them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "benchmarks/training/phase_clock.hpp"

namespace tinyllama::training {

using Json = nlohmann::ordered_json;

/// Which profiler recorded a step.
enum class Profiled { no, operators, memory };

struct StepRecord {
  int64_t step = 0;  ///< from 1
  double loss = 0;   ///< mean over the micro-batches, before the update
  PhaseTimes times;
  int64_t peak_memory_bytes = 0;                                ///< of tensors
  std::optional<int64_t> library_scratch_bytes = std::nullopt;  ///< beside them, where told apart
  Profiled profiled = Profiled::no;
  std::optional<double> evaluation_loss;
};

/// `summary` of docs/training_files.md. `whole_steps`: a step is one launch, whose phases nobody
/// can tell apart. `samples`, `tokens`: of a step.
Json summarize(const std::vector<StepRecord>& steps, int64_t samples, int64_t tokens,
               bool whole_steps);
/// `steps` of the same.
Json steps_json(const std::vector<StepRecord>& steps, bool whole_steps);

/// The middle of the values, 0 for none.
double median(std::vector<double> values);

}  // namespace tinyllama::training

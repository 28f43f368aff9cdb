// What a recording of memory means: peaks, their causes, and what the bytes are.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "benchmarks/training/memory_recording.hpp"
#include "model/cost.hpp"

namespace tinyllama::training {

/// The key `memory` of performance_summary.json (docs/training_files.md) from a recording of at
/// least one step. `workload`: of one micro-batch. `resident_before`: the process's resident set
/// before its first tensor, where known; used on a CPU only. Figures that the recording does not
/// hold are null. Throws std::invalid_argument for a recording without a step.
nlohmann::ordered_json analyze_memory(const MemoryRecording& recording, const Workload& workload,
                                      std::optional<int64_t> resident_before);

}  // namespace tinyllama::training

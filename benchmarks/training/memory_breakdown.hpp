// What the bytes alive at one instant are.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "benchmarks/training/memory_history.hpp"
#include "benchmarks/training/tensor_names.hpp"

namespace tinyllama::training {

/// Bytes. They add up to what is alive.
struct MemoryBreakdown {
  int64_t parameters = 0;
  int64_t gradients = 0;  ///< of the parameters
  int64_t optimizer_states = 0;
  int64_t activations = 0;       ///< allocated in a forward and alive at its end; no scores
  int64_t attention_scores = 0;  ///< of the activations, the matrices of scores
  int64_t temporary = 0;         ///< everything else: inputs, tables, gradients of activations, ...
};

/// Where the tensor was allocated. The block must be of the recording, not from before.
TensorOrigin origin_of(const MemoryRecording& recording, const MemoryBlock& block);
/// Whether the block was allocated in the stretch and is alive at its end.
bool is_left_by(const MemoryBlock& block, const Stretch& stretch);
MemoryBreakdown breakdown_at(const MemoryRecording& recording, const MemoryHistory& history,
                             const TensorNames& names, size_t instant);
/// Bytes that each component left alive at the end of the forward.
std::map<std::string, int64_t> activation_bytes(const MemoryRecording& recording,
                                                const MemoryHistory& history,
                                                const Stretch& forward);

}  // namespace tinyllama::training

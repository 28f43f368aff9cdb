#include "benchmarks/training/memory_breakdown.hpp"

#include <algorithm>

namespace tinyllama::training {
namespace {

/// The stretch of a phase that the event falls into; phases follow each other in order.
const Stretch* phase_of_event(const MemoryRecording& recording, size_t event) {
  const auto after = std::ranges::upper_bound(recording.phases, event, {}, &Stretch::first_event);
  if (after == recording.phases.begin()) return nullptr;
  const auto stretch = std::prev(after);
  return event < stretch->end_event ? &*stretch : nullptr;
}

bool is_activation(const MemoryRecording& recording, const MemoryBlock& block) {
  if (block.begin == 0) return false;
  const Stretch* stretch = phase_of_event(recording, block.begin - 1);
  return stretch != nullptr && stretch->phase == Phase::forward && is_left_by(block, *stretch);
}

int64_t& share_of(MemoryBreakdown& breakdown, TensorKind kind) {
  switch (kind) {
    case TensorKind::parameter:
      return breakdown.parameters;
    case TensorKind::gradient:
      return breakdown.gradients;
    case TensorKind::optimizer_state:
      break;
  }
  return breakdown.optimizer_states;
}

}  // namespace

TensorOrigin origin_of(const MemoryRecording& recording, const MemoryBlock& block) {
  const MemoryEvent& event = recording.events.at(block.begin - 1);
  return {recording.names[event.component], recording.names[event.operation], event.phase};
}

bool is_left_by(const MemoryBlock& block, const Stretch& stretch) {
  return block.begin > stretch.first_event && block.alive_at(stretch.end_event);
}

MemoryBreakdown breakdown_at(const MemoryRecording& recording, const MemoryHistory& history,
                             const TensorNames& names, size_t instant) {
  MemoryBreakdown breakdown;
  breakdown.temporary = history.live()[instant];
  for (const MemoryBlock& block : history.blocks()) {
    if (!block.alive_at(instant)) continue;
    int64_t* share = nullptr;
    if (block.kind) {
      share = &share_of(breakdown, *block.kind);
    } else if (is_activation(recording, block)) {
      const bool scores = names.is_score_matrix(origin_of(recording, block), block.bytes);
      share = scores ? &breakdown.attention_scores : &breakdown.activations;
    }
    if (share == nullptr) continue;
    *share += block.bytes;
    breakdown.temporary -= block.bytes;
  }
  return breakdown;
}

std::map<std::string, int64_t> activation_bytes(const MemoryRecording& recording,
                                                const MemoryHistory& history,
                                                const Stretch& forward) {
  std::map<std::string, int64_t> bytes;
  for (const MemoryBlock& block : history.blocks()) {
    if (block.begin == 0 || block.kind || !is_left_by(block, forward)) continue;
    bytes[std::string(origin_of(recording, block).component)] += block.bytes;
  }
  return bytes;
}

}  // namespace tinyllama::training

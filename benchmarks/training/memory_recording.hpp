// What a recording of memory consists of: allocations and releases in order, and where they fall.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/training/phase.hpp"

namespace tinyllama::training {

/// An allocation, or a release where `bytes` is negative.
struct MemoryEvent {
  double seconds = 0;  ///< since the recording's start
  const void* data = nullptr;
  int64_t bytes = 0;
  int64_t reserved_bytes = 0;  ///< held by the allocator, for tensors and for later
  Phase phase = Phase::other;
  size_t component = 0;        ///< index in MemoryRecording::names
  size_t operation = 0;        ///< the same; the innermost operator that computes
  uint64_t operator_call = 0;  ///< tells calls of an operator apart; 0 outside every operator
};

/// A stretch of events; it begins after `first_event` events and ends after `end_event`.
struct Stretch {
  int64_t step = 0;
  Phase phase = Phase::other;  ///< of a phase's stretch
  double begin_seconds = 0;
  double end_seconds = 0;
  size_t first_event = 0;
  size_t end_event = 0;
};

enum class TensorKind { parameter, gradient, optimizer_state };

/// A tensor that is known by more than its size.
struct KnownTensor {
  TensorKind kind = TensorKind::parameter;
  std::string name;
  const void* data = nullptr;  ///< of its storage
  int64_t bytes = 0;           ///< of its storage
};

/// Says what the tensor alive at this address after `event` events is.
struct TensorMark {
  size_t event = 0;
  KnownTensor tensor;
};

struct ResidentSample {
  size_t event = 0;
  int64_t bytes = 0;  ///< resident set of the process
};

struct MemoryRecording {
  bool on_gpu = false;
  int64_t live_bytes_before = 0;
  std::vector<KnownTensor> known_before;
  std::vector<MemoryEvent> events;
  std::vector<std::string> names;
  std::vector<Stretch> steps;
  std::vector<Stretch> phases;
  std::vector<TensorMark> marks;
  std::vector<ResidentSample> resident_samples;  ///< empty on a GPU
};

}  // namespace tinyllama::training

// Records every allocation and release of tensors on one device while steps run.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/training/component_ranges.hpp"
#include "model/adamw.hpp"

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

/// Parameters, their gradients where they have some, and optimizer states: one entry a storage.
std::vector<KnownTensor> known_tensors(const AdamW& optimizer);

/// Records for as long as it lives, through libtorch's own reports to profilers, which are the same
/// for every device. Also sees the threads that libtorch runs the backward on, because they inherit
/// this. Use from one thread: construct, for each step begin_step(), begin_phase() at every change
/// of phase, end_step(); then finish().
class MemoryRecorder {
 public:
  /// `known`: what is alive now and known by name. Throws std::logic_error where libtorch's
  /// profiler is on, which listens at the same place, or another ComponentTracker lives.
  MemoryRecorder(c10::Device device, std::vector<KnownTensor> known);
  ~MemoryRecorder();
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;

  void begin_step(int64_t step);
  void begin_phase(Phase phase);
  /// What the parameters' gradients are now; call where all are complete, before they are cleared.
  void mark_gradients(const NamedTensors& parameters);
  void end_step();
  /// Stops recording and hands over what was recorded. Nothing may be called after it.
  MemoryRecording finish();

 private:
  struct Sink;
  void end_phase();
  void stop();

  ComponentTracker tracker_;
  std::shared_ptr<Sink> sink_;
  std::optional<c10::DebugInfoGuard> listening_;
  std::optional<at::CallbackHandle> operator_callback_;
};

}  // namespace tinyllama::training

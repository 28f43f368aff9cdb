// Records every allocation and release of tensors on one device while steps run.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <optional>

#include "benchmarks/training/component_tracker.hpp"
#include "benchmarks/training/memory_recording.hpp"
#include "model/adamw.hpp"

namespace tinyllama::training {

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
  class Sink;
  void end_phase();
  void stop();

  ComponentTracker tracker_;
  std::shared_ptr<Sink> sink_;
  std::optional<c10::DebugInfoGuard> listening_;
  std::optional<at::CallbackHandle> operator_callback_;
};

}  // namespace tinyllama::training

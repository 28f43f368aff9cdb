// Recordings made by hand, for tests.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "benchmarks/training/memory_recording.hpp"

namespace tinyllama::training::testing {

/// Builds a recording event by event. Time passes only when it is told to.
class RecordingBuilder {
 public:
  explicit RecordingBuilder(int64_t live_bytes_before = 0) {
    recording_.live_bytes_before = live_bytes_before;
  }

  RecordingBuilder& step(int64_t step) {
    end_step();
    recording_.steps.push_back(stretch(step, Phase::other));
    step_is_open_ = true;
    return *this;
  }
  RecordingBuilder& phase(Phase phase) {
    end_phase();
    recording_.phases.push_back(stretch(recording_.steps.back().step, phase));
    phase_is_open_ = true;
    return *this;
  }
  RecordingBuilder& wait(double seconds) {
    now_ += seconds;
    return *this;
  }
  /// What the next events belong to. Each call is a new call of the operator.
  RecordingBuilder& in(std::string_view component, std::string_view operation) {
    component_ = index_of(component);
    operation_ = index_of(operation);
    ++call_;
    return *this;
  }
  /// `address`: any number that tells tensors apart.
  RecordingBuilder& allocate(uintptr_t address, int64_t bytes) { return add(address, bytes); }
  RecordingBuilder& release(uintptr_t address, int64_t bytes) { return add(address, -bytes); }
  RecordingBuilder& mark_gradient(uintptr_t address, std::string name, int64_t bytes) {
    recording_.marks.push_back({recording_.events.size(),
                                {TensorKind::gradient, std::move(name), pointer(address), bytes}});
    return *this;
  }
  RecordingBuilder& know(TensorKind kind, uintptr_t address, std::string name, int64_t bytes) {
    recording_.known_before.push_back({kind, std::move(name), pointer(address), bytes});
    return *this;
  }
  RecordingBuilder& resident(int64_t bytes) {
    recording_.resident_samples.push_back({recording_.events.size(), bytes});
    return *this;
  }
  RecordingBuilder& on_gpu(int64_t reserved_bytes) {
    recording_.on_gpu = true;
    reserved_bytes_ = reserved_bytes;
    return *this;
  }
  MemoryRecording finish() {
    end_step();
    return recording_;
  }

 private:
  static const void* pointer(uintptr_t address) { return reinterpret_cast<const void*>(address); }
  Stretch stretch(int64_t step, Phase phase) const {
    return {step, phase, now_, now_, recording_.events.size(), recording_.events.size()};
  }
  void close(Stretch& stretch) const {
    stretch.end_seconds = now_;
    stretch.end_event = recording_.events.size();
  }
  void end_phase() {
    if (phase_is_open_) close(recording_.phases.back());
    phase_is_open_ = false;
  }
  void end_step() {
    end_phase();
    if (step_is_open_) close(recording_.steps.back());
    step_is_open_ = false;
  }
  size_t index_of(std::string_view name) {
    auto& names = recording_.names;
    const auto at = std::ranges::find(names, name);
    if (at != names.end()) return static_cast<size_t>(at - names.begin());
    names.emplace_back(name);
    return names.size() - 1;
  }
  RecordingBuilder& add(uintptr_t address, int64_t bytes) {
    if (recording_.names.empty()) in("other", "");
    recording_.events.push_back({now_, pointer(address), bytes, reserved_bytes_,
                                 phase_is_open_ ? recording_.phases.back().phase : Phase::other,
                                 component_, operation_,
                                 recording_.names[operation_].empty() ? 0 : call_});
    return *this;
  }

  MemoryRecording recording_;
  double now_ = 0;
  size_t component_ = 0;
  size_t operation_ = 0;
  uint64_t call_ = 0;
  int64_t reserved_bytes_ = 0;
  bool step_is_open_ = false;
  bool phase_is_open_ = false;
};

}  // namespace tinyllama::training::testing

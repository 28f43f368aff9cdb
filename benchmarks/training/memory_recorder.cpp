#include "benchmarks/training/memory_recorder.hpp"

#include <c10/core/Allocator.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <stdexcept>
#include <string_view>
#include <unordered_set>

#include "benchmarks/training/component_names.hpp"
#include "benchmarks/training/memory_state.hpp"

namespace tinyllama::training {
namespace {

// Of the allocation events of some tiny steps, so that the list need not grow while they run.
constexpr size_t kExpectedEvents = size_t{1} << 16;

struct OperatorFrame {
  const at::RecordFunction* function = nullptr;
  uint64_t call = 0;
};

/// Operators that the thread is in, outermost first. libtorch calls back through a plain function
/// pointer, thousands of times a step: nothing else finds this thread's list as fast. Frames are
/// only added by a recorder's callback, and each is taken off by its own end.
struct OperatorStack {
  std::vector<OperatorFrame> frames;
  uint64_t calls = 0;

  static OperatorStack& of_this_thread() {
    thread_local OperatorStack stack;
    return stack;
  }
};

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& function) {
  OperatorStack& stack = OperatorStack::of_this_thread();
  // The name is asked for only where something is allocated.
  stack.frames.push_back({&function, ++stack.calls});
  return nullptr;
}

void end_operator(const at::RecordFunction&, at::ObserverContext*) {
  OperatorStack::of_this_thread().frames.pop_back();
}

// Operators that only make room for what another one computes.
bool only_allocates(std::string_view name) {
  constexpr std::array<std::string_view, 4> prefixes = {"aten::empty", "aten::new_empty",
                                                        "aten::resize", "aten::set_"};
  for (const auto prefix : prefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

/// The innermost operator that computes, or the innermost of all.
OperatorFrame current_operator() {
  const auto& frames = OperatorStack::of_this_thread().frames;
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    if (!only_allocates(frame->function->name())) return *frame;
  }
  return frames.empty() ? OperatorFrame{} : frames.back();
}

void add_known(std::vector<KnownTensor>& known, std::unordered_set<const void*>& seen,
               TensorKind kind, std::string name, const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  // Merged projections keep several parameters in one storage.
  if (storage.data() == nullptr || !seen.insert(storage.data()).second) return;
  known.push_back({kind, std::move(name), storage.data(), static_cast<int64_t>(storage.nbytes())});
}

}  // namespace

std::vector<KnownTensor> known_tensors(const AdamW& optimizer) {
  std::vector<KnownTensor> known;
  std::unordered_set<const void*> seen;
  for (const auto& [name, parameter] : optimizer.parameters()) {
    add_known(known, seen, TensorKind::parameter, name, parameter);
    if (parameter.grad().defined())
      add_known(known, seen, TensorKind::gradient, name, parameter.grad());
  }
  for (const auto& [name, moment] : optimizer.first_moments())
    add_known(known, seen, TensorKind::optimizer_state, "first moment of " + name, moment);
  for (const auto& [name, moment] : optimizer.second_moments())
    add_known(known, seen, TensorKind::optimizer_state, "second moment of " + name, moment);
  return known;
}

/// Takes the reports of all threads.
class MemoryRecorder::Sink final : public c10::MemoryReportingInfoBase {
 public:
  Sink(c10::Device device, const ComponentTracker& tracker, std::vector<KnownTensor> known)
      : device_(device), tracker_(tracker) {
    recording_.on_gpu = !device.is_cpu();
    recording_.live_bytes_before = live_tensor_bytes(device);
    recording_.known_before = std::move(known);
    recording_.events.reserve(kExpectedEvents);
  }

  bool memoryProfilingEnabled() const override { return true; }

  void reportMemoryUsage(void* data, int64_t bytes, size_t /*total_allocated*/,
                         size_t total_reserved, c10::Device device) override {
    if (!is_recorded(device)) return;
    const OperatorFrame in = current_operator();
    const std::string& component = tracker_.current();
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    const bool unknown = component == kOtherComponent;
    recording_.events.push_back(
        {now(), data, bytes, static_cast<int64_t>(total_reserved), phase_,
         index_of(unknown ? component_of_phase() : std::string_view(component)),
         index_of(in.function == nullptr ? std::string_view() : in.function->name()),
         in.function == nullptr ? 0 : unique_call(in)});
  }

  void begin_step(int64_t step) {
    const std::lock_guard lock(mutex_);
    recording_.steps.push_back(stretch(step, Phase::other));
  }
  void end_step() {
    const std::lock_guard lock(mutex_);
    close(recording_.steps);
  }
  void begin_phase(Phase phase) {
    const std::lock_guard lock(mutex_);
    const int64_t step = recording_.steps.empty() ? 0 : recording_.steps.back().step;
    phase_ = phase;
    phase_is_open_ = true;
    recording_.phases.push_back(stretch(step, phase));
  }
  void end_phase() {
    const auto resident = recording_.on_gpu ? std::nullopt : resident_set_bytes();
    const std::lock_guard lock(mutex_);
    if (!phase_is_open_) return;
    phase_is_open_ = false;
    phase_ = Phase::other;
    close(recording_.phases);
    if (resident) recording_.resident_samples.push_back({recording_.events.size(), *resident});
  }
  void mark(std::vector<KnownTensor> tensors) {
    const std::lock_guard lock(mutex_);
    for (KnownTensor& tensor : tensors)
      recording_.marks.push_back({recording_.events.size(), std::move(tensor)});
  }
  MemoryRecording finish() {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    return std::move(recording_);
  }

 private:
  bool is_recorded(c10::Device device) const {
    return device.type() == device_.type() &&
           (device.is_cpu() || !device_.has_index() || device.index() == device_.index());
  }

  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  std::string_view component_of_phase() const {
    const bool has_one =
        phase_ == Phase::data_loading || phase_ == Phase::optimizer || phase_ == Phase::evaluation;
    return has_one ? to_string(phase_) : kOtherComponent;
  }

  // Calls are counted by each thread for itself.
  static uint64_t unique_call(const OperatorFrame& frame) {
    constexpr int bits_of_call = 44;
    return (frame.function->threadId() << bits_of_call) | frame.call;
  }

  size_t index_of(std::string_view name) {
    const auto known = name_index_.find(name);
    if (known != name_index_.end()) return known->second;
    recording_.names.emplace_back(name);
    name_index_.emplace(name, recording_.names.size() - 1);
    return recording_.names.size() - 1;
  }

  Stretch stretch(int64_t step, Phase phase) const {
    const double begin = now();
    const size_t event = recording_.events.size();
    return {step, phase, begin, begin, event, event};
  }
  void close(std::vector<Stretch>& stretches) const {
    stretches.back().end_seconds = now();
    stretches.back().end_event = recording_.events.size();
  }

  const c10::Device device_;
  const ComponentTracker& tracker_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  MemoryRecording recording_;
  std::map<std::string, size_t, std::less<>> name_index_;
  Phase phase_ = Phase::other;
  bool phase_is_open_ = false;
  bool finished_ = false;
};

MemoryRecorder::MemoryRecorder(c10::Device device, std::vector<KnownTensor> known) {
  if (c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr) {
    throw std::logic_error(
        "memory cannot be recorded while libtorch's profiler is on: both listen at one place");
  }
  sink_ = std::make_shared<Sink>(device, tracker_, std::move(known));
  operator_callback_ =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&begin_operator, &end_operator)
                                     .scopes({at::RecordScope::FUNCTION}));
  listening_.emplace(c10::DebugInfoKind::PROFILER_STATE, sink_);
}

MemoryRecorder::~MemoryRecorder() {
  stop();
}

void MemoryRecorder::stop() {
  listening_.reset();
  if (operator_callback_) at::removeCallback(*operator_callback_);
  operator_callback_.reset();
}

void MemoryRecorder::begin_step(int64_t step) {
  // The last step's graph is gone.
  tracker_.clear();
  sink_->begin_step(step);
}

void MemoryRecorder::end_phase() {
  tracker_.end_backward();
  sink_->end_phase();
}

void MemoryRecorder::begin_phase(Phase phase) {
  end_phase();
  sink_->begin_phase(phase);
}

void MemoryRecorder::mark_gradients(const NamedTensors& parameters) {
  std::vector<KnownTensor> gradients;
  std::unordered_set<const void*> seen;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined())
      add_known(gradients, seen, TensorKind::gradient, name, parameter.grad());
  }
  sink_->mark(std::move(gradients));
}

void MemoryRecorder::end_step() {
  end_phase();
  sink_->end_step();
}

MemoryRecording MemoryRecorder::finish() {
  stop();
  return sink_->finish();
}

}  // namespace tinyllama::training

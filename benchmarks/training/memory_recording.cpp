#include "benchmarks/training/memory_recording.hpp"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <stdexcept>
#include <string_view>
#include <unordered_set>

#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/memory_meter.hpp"

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
  return std::ranges::any_of(prefixes, [&](auto prefix) { return name.starts_with(prefix); });
}

/// The innermost operator that computes, or the innermost of all.
OperatorFrame current_operator() {
  const auto& frames = OperatorStack::of_this_thread().frames;
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    if (!only_allocates(frame->function->name())) return *frame;
  }
  return frames.empty() ? OperatorFrame{} : frames.back();
}

// Calls are counted by each thread for itself.
uint64_t unique_call(const OperatorFrame& frame) {
  constexpr int bits_of_call = 44;
  return (frame.function->threadId() << bits_of_call) | frame.call;
}

/// Tensors by name, one entry a storage.
class KnownTensors {
 public:
  void add(TensorKind kind, std::string name, const at::Tensor& tensor) {
    // A parameter has no gradient before the first backward.
    if (!tensor.defined()) return;
    const c10::Storage& storage = tensor.storage();
    // Merged projections keep several parameters in one storage.
    if (storage.data() == nullptr || !seen_.insert(storage.data()).second) return;
    known.push_back(
        {kind, std::move(name), storage.data(), static_cast<int64_t>(storage.nbytes())});
  }
  std::vector<KnownTensor> known;

 private:
  std::unordered_set<const void*> seen_;
};

}  // namespace

std::vector<KnownTensor> known_tensors(const AdamW& optimizer) {
  KnownTensors tensors;
  for (const auto& [name, parameter] : optimizer.parameters()) {
    tensors.add(TensorKind::parameter, name, parameter);
    tensors.add(TensorKind::gradient, name, parameter.grad());
  }
  for (const auto& [name, moment] : optimizer.first_moments())
    tensors.add(TensorKind::optimizer_state, "first moment of " + name, moment);
  for (const auto& [name, moment] : optimizer.second_moments())
    tensors.add(TensorKind::optimizer_state, "second moment of " + name, moment);
  return std::move(tensors.known);
}

/// Takes the reports of all threads, which may come while the recorder notes a step or a phase:
/// hold `mutex` for whatever is read or written.
struct MemoryRecorder::Sink final : c10::MemoryReportingInfoBase {
  Sink(c10::Device recorded_device, const ComponentTracker& of_threads,
       std::vector<KnownTensor> known)
      : device(recorded_device), tracker(of_threads) {
    recording.on_gpu = !device.is_cpu();
    recording.live_bytes_before = instruments::live_tensor_bytes(device);
    recording.known_before = std::move(known);
    recording.events.reserve(kExpectedEvents);
  }

  bool memoryProfilingEnabled() const override { return true; }

  void reportMemoryUsage(void* data, int64_t bytes, size_t /*total_allocated*/,
                         size_t total_reserved, c10::Device reported) override {
    const bool same_index =
        device.is_cpu() || !device.has_index() || reported.index() == device.index();
    if (reported.type() != device.type() || !same_index) return;
    const OperatorFrame in = current_operator();
    const std::string& component = tracker.current();
    const std::lock_guard lock(mutex);
    if (finished) return;
    const bool unknown = component == kOtherComponent;
    recording.events.push_back(
        {now(), data, bytes, static_cast<int64_t>(total_reserved), phase,
         index_of(unknown ? component_of_phase() : std::string_view(component)),
         index_of(in.function == nullptr ? std::string_view() : in.function->name()),
         in.function == nullptr ? 0 : unique_call(in)});
  }

  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  std::string_view component_of_phase() const {
    const bool has_one =
        phase == Phase::data_loading || phase == Phase::optimizer || phase == Phase::evaluation;
    return has_one ? to_string(phase) : kOtherComponent;
  }

  size_t index_of(std::string_view name) {
    const auto known = name_index.find(name);
    if (known != name_index.end()) return known->second;
    recording.names.emplace_back(name);
    return name_index.emplace(name, recording.names.size() - 1).first->second;
  }

  void open(std::vector<Stretch>& stretches, int64_t step, Phase of) const {
    const double begin = now();
    const size_t event = recording.events.size();
    stretches.push_back({step, of, begin, begin, event, event});
  }
  void close(std::vector<Stretch>& stretches) const {
    stretches.back().end_seconds = now();
    stretches.back().end_event = recording.events.size();
  }

  const c10::Device device;
  const ComponentTracker& tracker;
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::mutex mutex;
  MemoryRecording recording;
  std::map<std::string, size_t, std::less<>> name_index;
  Phase phase = Phase::other;
  bool phase_is_open = false;
  bool finished = false;
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
  const std::lock_guard lock(sink_->mutex);
  sink_->open(sink_->recording.steps, step, Phase::other);
}

void MemoryRecorder::begin_phase(Phase phase) {
  end_phase();
  const std::lock_guard lock(sink_->mutex);
  MemoryRecording& recording = sink_->recording;
  sink_->phase = phase;
  sink_->phase_is_open = true;
  sink_->open(recording.phases, recording.steps.empty() ? 0 : recording.steps.back().step, phase);
}

void MemoryRecorder::end_phase() {
  tracker_.end_backward();
  const auto resident =
      sink_->device.is_cpu() ? instruments::host_machine::resident_bytes() : std::nullopt;
  const std::lock_guard lock(sink_->mutex);
  if (!sink_->phase_is_open) return;
  sink_->phase_is_open = false;
  sink_->phase = Phase::other;
  MemoryRecording& recording = sink_->recording;
  sink_->close(recording.phases);
  if (resident) recording.resident_samples.push_back({recording.events.size(), *resident});
}

void MemoryRecorder::mark_gradients(const NamedTensors& parameters) {
  KnownTensors gradients;
  for (const auto& [name, parameter] : parameters)
    gradients.add(TensorKind::gradient, name, parameter.grad());
  const std::lock_guard lock(sink_->mutex);
  MemoryRecording& recording = sink_->recording;
  for (KnownTensor& tensor : gradients.known)
    recording.marks.push_back({recording.events.size(), std::move(tensor)});
}

void MemoryRecorder::end_step() {
  end_phase();
  const std::lock_guard lock(sink_->mutex);
  sink_->close(sink_->recording.steps);
}

MemoryRecording MemoryRecorder::finish() {
  stop();
  const std::lock_guard lock(sink_->mutex);
  sink_->finished = true;
  return std::move(sink_->recording);
}

}  // namespace tinyllama::training

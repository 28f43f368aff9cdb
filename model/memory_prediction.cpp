#include "model/memory_prediction.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string_view>
#include <unordered_map>

#include "model/meta_device.hpp"
#include "model/train_step.hpp"

namespace tinyllama {
namespace {

enum class Phase { build, forward, backward, update };

// What one thread's tensors have allocated. Counted are those on meta and, where they stand for
// tensors on a CPU, the few that are on the CPU there as well: numbers that operators wrap.
class Count {
 public:
  explicit Count(c10::DeviceType device) : keeps_events_(device != c10::DeviceType::CPU) {}

  /// Returns the allocation's number.
  int64_t begin_block(int64_t bytes) {
    add(bytes);
    if (keeps_events_) events_.push_back({blocks_, bytes});
    return blocks_++;
  }
  void end_block(int64_t block, int64_t bytes) {
    add(-bytes);
    if (keeps_events_) events_.push_back({block, 0});
  }
  void begin_capture() { events_.push_back(kCaptureBegins); }
  /// All until now; null on a CPU.
  std::shared_ptr<const std::vector<AllocationEvent>> events() const {
    return keeps_events_ ? std::make_shared<const std::vector<AllocationEvent>>(events_) : nullptr;
  }
  void add(int64_t bytes) {
    live_ += bytes;
    if (bytes > 0) note_peak();
  }
  void begin(Phase phase) {
    if (phase == phase_) return;
    phase_ = phase;
    note_peak();
    if (phase == Phase::backward && at_backward_ < 0) at_backward_ = live_;
  }
  int64_t live() const { return live_; }
  int64_t peak(Phase phase) const { return peaks_[static_cast<size_t>(phase)]; }
  /// Bytes alive where the backward began; below 0 where none did.
  int64_t at_backward() const { return at_backward_; }

 private:
  void note_peak() {
    int64_t& peak = peaks_[static_cast<size_t>(phase_)];
    peak = std::max(peak, live_);
  }

  bool keeps_events_;
  std::vector<AllocationEvent> events_;
  int64_t blocks_ = 0;
  int64_t live_ = 0;
  int64_t peaks_[4] = {};
  int64_t at_backward_ = -1;
  Phase phase_ = Phase::build;
};

// Of this thread; null while nothing is predicted.
thread_local std::shared_ptr<Count> counting;

// Tensors on meta ask it for memory; it has none to give, only addresses, by which an execution
// trace tells storages apart: no processor can read there. Each block belongs to the count that was
// running when it was made.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device meta(c10::DeviceType::Meta);
    if (!counting || bytes == 0) return {nullptr, meta};
    const auto size = static_cast<int64_t>(bytes);
    auto* block = new Block{counting, size, counting->begin_block(size)};
    return {reinterpret_cast<void*>(next_address_.fetch_add(kApart)), block, &release, meta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {}

 private:
  struct Block {
    std::shared_ptr<Count> count;
    int64_t bytes;
    int64_t number;
  };
  static void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->count->end_block(block->number, block->bytes);
  }

  static constexpr uintptr_t kApart = 64;
  std::atomic<uintptr_t> next_address_{uintptr_t{1} << 63};
};

// Hears of this thread's allocations on the CPU, from whichever allocator makes them.
class HostListener final : public c10::MemoryReportingInfoBase {
 public:
  explicit HostListener(std::shared_ptr<Count> count) : count_(std::move(count)) {}
  void reportMemoryUsage(void* address, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    if (bytes > 0) {
      blocks_[address] = bytes;
      count_->add(bytes);
    } else if (const auto found = blocks_.find(address); found != blocks_.end()) {
      count_->add(-found->second);
      blocks_.erase(found);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  std::shared_ptr<Count> count_;
  std::unordered_map<void*, int64_t> blocks_;
};

// libtorch calls it on this thread where a node of the graph begins, and where a range of ours
// does.
std::unique_ptr<at::ObserverContext> note_phase(const at::RecordFunction& function) {
  if (!counting) return nullptr;
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    counting->begin(Phase::backward);
  } else if (std::string_view(function.name()) == "optimizer") {
    counting->begin(Phase::update);
  }
  return nullptr;
}

class Counting {
 public:
  explicit Counting(c10::DeviceType device)
      : meta_(device),
        count_(std::make_shared<Count>(device)),
        host_(c10::DebugInfoKind::PROFILER_STATE,
              device == c10::DeviceType::CPU ? std::make_shared<HostListener>(count_) : nullptr),
        phases_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(note_phase)
                .scopes({at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}))),
        previous_(std::exchange(counting, count_)) {
    static MetaAllocator allocator;
    static const bool installed = [] {
      c10::SetAllocator(c10::DeviceType::Meta, &allocator, /*priority=*/1);
      return true;
    }();
    static_cast<void>(installed);
  }
  ~Counting() {
    counting = previous_;
    at::removeCallback(phases_);
  }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  Count& count() { return *count_; }

 private:
  MetaStandsFor meta_;
  std::shared_ptr<Count> count_;
  c10::DebugInfoGuard host_;
  at::CallbackHandle phases_;
  std::shared_ptr<Count> previous_;
};

int64_t storage_bytes_of(const NamedTensors& tensors) {
  std::set<const c10::StorageImpl*> seen;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined() && seen.insert(tensor.storage().unsafeGetStorageImpl()).second)
      bytes += static_cast<int64_t>(tensor.storage().nbytes());
  }
  return bytes;
}

// What every layer saves of its input, at the least. In floating point: it may be beyond 64 bits.
double least_step_bytes(const Workload& workload) {
  const double tokens = static_cast<double>(workload.batch) * static_cast<double>(workload.seq);
  return tokens * static_cast<double>(workload.config.hidden_dim()) *
         static_cast<double>(workload.config.n_layers()) *
         static_cast<double>(storage_bytes(workload.dtype));
}

NamedTensors gradients_of(const NamedTensors& parameters) {
  NamedTensors gradients;
  for (const auto& [name, parameter] : parameters) gradients.emplace_back(name, parameter.grad());
  return gradients;
}

}  // namespace

PredictedMemory predict_memory(c10::DeviceType device, const std::function<WorkOnMeta()>& build) {
  Counting scope(device);
  Count& count = scope.count();
  PredictedMemory memory;
  const WorkOnMeta work = build();
  const int64_t at_start = count.live();
  const int64_t gradients_at_start = storage_bytes_of(gradients_of(work.parameters));
  count.begin(Phase::forward);
  work.iteration();
  memory.live = count.live();
  memory.peaks = {count.peak(Phase::build), count.peak(Phase::forward), count.peak(Phase::backward),
                  count.peak(Phase::update)};
  memory.weights = storage_bytes_of(work.parameters);
  memory.optimizer_state = storage_bytes_of(work.optimizer_state);
  memory.gradients = storage_bytes_of(gradients_of(work.parameters));
  memory.inputs = at_start - memory.weights - memory.optimizer_state - gradients_at_start;
  memory.activations = (count.at_backward() < 0 ? memory.live : count.at_backward()) - at_start;
  const int64_t peak = std::max({memory.peaks.forward, memory.peaks.backward, memory.peaks.update});
  memory.temporary = peak - memory.peak();
  // Once more, since what the first iteration leaves cached decides where the next one's find room.
  if (device != c10::DeviceType::CPU) work.iteration();
  memory.allocations = count.events();
  return memory;
}

void note_capture() {
  if (counting) counting->begin_capture();
}

PredictedMemory beyond_any_device(double bytes) {
  constexpr double most = 9e18;  // that 64 bits can hold
  return {.inputs = static_cast<int64_t>(std::min(bytes, most))};
}

PredictedMemory predict_step_memory(const Workload& workload, c10::DeviceType device,
                                    const StepSetting& setting) {
  struct Work {
    Work(const Workload& w, const StepSetting& of)
        : initializer(0, w.dtype, c10::Device(c10::DeviceType::Meta)),
          model(w.config, w.variant, w.seq, initializer),
          optimizer(model.parameters(), w.variant),
          batch(random_token_batch(w.config, w.batch, w.seq, initializer)),
          step(model, optimizer) {
      model.set_hooks(of.hooks);
      if (!of.has_gradients) return;
      const at::NoGradGuard no_grad;
      for (const auto& [name, parameter] : model.parameters())
        parameter.mutable_grad() = at::empty_like(parameter);
    }
    TensorInitializer initializer;
    TinyLlama model;
    AdamW optimizer;
    TokenBatch batch;
    TrainStep step;
    void run() {
      at::Tensor loss = step.forward(batch);
      counting->begin(Phase::backward);  // before the gradient that it starts from
      step.backward(loss);
      loss.reset();
      step.update();
    }
  };
  const double least = least_step_bytes(workload);
  if (least >= kBeyondAnyDevice) return beyond_any_device(least);
  Workload predicted = workload;
  if (!workload.variant.runs_on_meta()) predicted.variant = workload.variant.without_operators();
  return predict_memory(device, [&] {
    const auto work = std::make_shared<Work>(predicted, setting);
    NamedTensors moments = work->optimizer.first_moments();
    append(moments, work->optimizer.second_moments());
    return WorkOnMeta{[work] { work->run(); }, work->model.parameters(), std::move(moments)};
  });
}

}  // namespace tinyllama

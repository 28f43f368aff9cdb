#include "benchmarks/training/component_ranges.hpp"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace tinyllama::training {
namespace {

/// The one that lives. libtorch calls back through a plain function pointer, which leaves no other
/// way to find it.
std::atomic<ComponentTracker*>& living() {
  static std::atomic<ComponentTracker*> tracker{nullptr};
  return tracker;
}

// The GPU's where there is one: its ranges lie beside the kernels they launch.
const torch::profiler::impl::ProfilerStubs* range_stubs() {
  const auto* const gpu = torch::profiler::impl::cudaStubs();
  if (gpu->enabled()) return gpu;
  const auto* const itt = torch::profiler::impl::ittStubs();
  return itt->enabled() ? itt : nullptr;
}

std::unique_ptr<at::ObserverContext> push_range(const at::RecordFunction& range) {
  range_stubs()->rangePush(range.name());
  return nullptr;
}

void pop_range(const at::RecordFunction&, at::ObserverContext*) {
  range_stubs()->rangePop();
}

/// Tells the end of a node that its range is open.
struct OpenRange : at::ObserverContext {};

}  // namespace

ComponentTracker::ComponentTracker(bool emits_nodes)
    : emits_nodes_(emits_nodes), other_(&*names_.emplace(kOtherComponent).first) {
  ComponentTracker* none = nullptr;
  if (!living().compare_exchange_strong(none, this)) {
    throw std::logic_error("a second ComponentTracker: one at a time can live in a process");
  }
  // Callbacks of a thread, because libtorch hands them on to the threads of its backward and lets
  // them be removed while others run.
  callbacks_ = {at::addThreadLocalCallback(at::RecordFunctionCallback(&begin_range, &end_range)
                                               .scopes({at::RecordScope::USER_SCOPE})),
                at::addThreadLocalCallback(at::RecordFunctionCallback(&begin_node, &end_node)
                                               .scopes({at::RecordScope::BACKWARD_FUNCTION}))};
}

ComponentTracker::~ComponentTracker() {
  for (const at::CallbackHandle callback : callbacks_) at::removeCallback(callback);
  living().store(nullptr);
}

// Nodes from the next one on belong to the innermost range that is open now.
void ComponentTracker::mark_boundary(ThreadState& state) const {
  const uint64_t first = at::sequence_number::peek();
  auto& created = state.created;
  // What the last boundary began has no node.
  if (!created.empty() && created.back().first == first) created.pop_back();
  const Name before = created.empty() ? other_ : created.back().component;
  const Name component = state.ranges.empty() ? other_ : state.ranges.back();
  if (component != before) created.push_back({first, component});
}

ComponentTracker::Name ComponentTracker::component_of(uint64_t forward_thread,
                                                      int64_t sequence) const {
  if (sequence < 0) return other_;
  const auto& created = threads_[forward_thread].created;
  const auto after = std::ranges::upper_bound(created, static_cast<uint64_t>(sequence), {},
                                              &ThreadState::Boundary::first);
  return after == created.begin() ? other_ : std::prev(after)->component;
}

template <typename Work>
void ComponentTracker::with_thread_of(const at::RecordFunction& function, Work work) {
  ComponentTracker* self = living().load();
  if (self == nullptr) return;
  const std::lock_guard lock(self->mutex_);
  work(*self, self->threads_[function.threadId()]);
}

std::unique_ptr<at::ObserverContext> ComponentTracker::begin_range(
    const at::RecordFunction& range) {
  if (is_structural_range(range.name())) return nullptr;
  // The graph of the last batch is gone when the next is read.
  ComponentTracker* const tracker = living().load();
  if (tracker != nullptr && tracker->emits_nodes_ && range.name() == to_string(Phase::data_loading))
    tracker->clear();
  with_thread_of(range, [&](ComponentTracker& self, ThreadState& state) {
    const Name name = &*self.names_.emplace(range.name()).first;
    state.ranges.push_back(name);
    state.open.push_back(name);
    self.mark_boundary(state);
  });
  return nullptr;
}

void ComponentTracker::end_range(const at::RecordFunction& range, at::ObserverContext*) {
  if (is_structural_range(range.name())) return;
  with_thread_of(range, [](ComponentTracker& self, ThreadState& state) {
    // Opened before this tracker lived.
    if (state.ranges.empty()) return;
    state.ranges.pop_back();
    state.open.pop_back();
    self.mark_boundary(state);
  });
}

std::unique_ptr<at::ObserverContext> ComponentTracker::begin_node(const at::RecordFunction& node) {
  Name emitted = nullptr;
  with_thread_of(node, [&](ComponentTracker& self, ThreadState& state) {
    // A node without a number stores a leaf's gradient, right after the node that gave it.
    const bool is_leaf = node.seqNr() < 0 && state.last_node != nullptr;
    state.open.push_back(is_leaf ? state.last_node
                                 : self.component_of(node.forwardThreadId(), node.seqNr()));
    if (self.emits_nodes_ && state.open.back() != self.other_) emitted = state.open.back();
  });
  if (emitted == nullptr) return nullptr;
  range_stubs()->rangePush(emitted->c_str());
  return std::make_unique<OpenRange>();
}

void ComponentTracker::end_node(const at::RecordFunction& node, at::ObserverContext* open_range) {
  if (open_range != nullptr) range_stubs()->rangePop();
  with_thread_of(node, [](ComponentTracker&, ThreadState& state) {
    if (state.open.empty()) return;
    state.last_node = state.open.back();
    state.open.pop_back();
  });
}

const std::string& ComponentTracker::current() const {
  const std::lock_guard lock(mutex_);
  const ThreadState& thread = threads_[at::RecordFunction::currentThreadId()];
  if (!thread.open.empty()) return *thread.open.back();
  return thread.last_node != nullptr ? *thread.last_node : *other_;
}

const std::string& ComponentTracker::of_node(uint64_t forward_thread, int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  return *component_of(forward_thread, sequence);
}

void ComponentTracker::end_backward() {
  const std::lock_guard lock(mutex_);
  for (auto& [thread, state] : threads_) state.last_node = nullptr;
}

void ComponentTracker::clear() {
  const std::lock_guard lock(mutex_);
  for (auto& [thread, state] : threads_) {
    auto& created = state.created;
    // The last boundary began what is open.
    const auto keep = state.ranges.empty() || created.empty() ? created.end() : created.end() - 1;
    created.erase(created.begin(), keep);
  }
}

RangeEmitter::RangeEmitter(bool with_backward) {
  if (range_stubs() == nullptr) {
    throw std::invalid_argument(
        "--emit-ranges: this libtorch was built without roctx, NVTX and ITT; use one that was, or "
        "leave the option out");
  }
  if (with_backward) tracker_.emplace(true);
  callback_ = at::addGlobalCallback(
      at::RecordFunctionCallback(&push_range, &pop_range).scopes({at::RecordScope::USER_SCOPE}));
}

RangeEmitter::~RangeEmitter() {
  at::removeCallback(callback_);
}

}  // namespace tinyllama::training

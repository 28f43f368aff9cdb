#include "benchmarks/training/component_tracker.hpp"

#include <ATen/SequenceNumber.h>

#include <atomic>
#include <stdexcept>

#include "benchmarks/training/component_names.hpp"

namespace tinyllama::training {
namespace {

/// The one that lives. libtorch calls back through a plain function pointer, which leaves no other
/// way to find it.
std::atomic<ComponentTracker*>& living() {
  static std::atomic<ComponentTracker*> tracker{nullptr};
  return tracker;
}

}  // namespace

ComponentTracker::ComponentTracker() {
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

ComponentTracker::ThreadState& ComponentTracker::state(uint64_t thread) const {
  return threads_[thread];
}

const std::string& ComponentTracker::component_of(uint64_t forward_thread, int64_t sequence) const {
  return state(forward_thread).created.of_sequence(sequence);
}

std::unique_ptr<at::ObserverContext> ComponentTracker::begin_range(
    const at::RecordFunction& range) {
  ComponentTracker* self = living().load();
  if (self == nullptr || is_structural_range(range.name())) return nullptr;
  const std::lock_guard lock(self->mutex_);
  ThreadState& state = self->state(range.threadId());
  state.created.enter(range.name(), at::sequence_number::peek());
  state.open.push_back(&state.created.current());
  return nullptr;
}

void ComponentTracker::end_range(const at::RecordFunction& range, at::ObserverContext*) {
  ComponentTracker* self = living().load();
  if (self == nullptr || is_structural_range(range.name())) return;
  const std::lock_guard lock(self->mutex_);
  ThreadState& state = self->state(range.threadId());
  // Opened before this tracker lived.
  if (state.open.empty()) return;
  state.created.leave(at::sequence_number::peek());
  state.open.pop_back();
}

std::unique_ptr<at::ObserverContext> ComponentTracker::begin_node(const at::RecordFunction& node) {
  ComponentTracker* self = living().load();
  if (self == nullptr) return nullptr;
  const std::lock_guard lock(self->mutex_);
  ThreadState& state = self->state(node.threadId());
  // A node without a number stores a leaf's gradient, right after the node that gave it.
  const std::string* component = node.seqNr() < 0 && state.last_node != nullptr
                                     ? state.last_node
                                     : &self->component_of(node.forwardThreadId(), node.seqNr());
  state.open.push_back(component);
  return nullptr;
}

void ComponentTracker::end_node(const at::RecordFunction& node, at::ObserverContext*) {
  ComponentTracker* self = living().load();
  if (self == nullptr) return;
  const std::lock_guard lock(self->mutex_);
  ThreadState& state = self->state(node.threadId());
  if (state.open.empty()) return;
  state.last_node = state.open.back();
  state.open.pop_back();
}

const std::string& ComponentTracker::current() const {
  const std::lock_guard lock(mutex_);
  const ThreadState& thread = state(at::RecordFunction::currentThreadId());
  if (!thread.open.empty()) return *thread.open.back();
  return thread.last_node != nullptr ? *thread.last_node : thread.created.current();
}

const std::string& ComponentTracker::of_node(uint64_t forward_thread, int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  return component_of(forward_thread, sequence);
}

void ComponentTracker::end_backward() {
  const std::lock_guard lock(mutex_);
  for (auto& [thread, state] : threads_) state.last_node = nullptr;
}

void ComponentTracker::clear() {
  const std::lock_guard lock(mutex_);
  for (auto& [thread, state] : threads_) state.created.clear();
}

}  // namespace tinyllama::training

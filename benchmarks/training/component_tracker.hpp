// Which component of the model a thread works for, forward and backward.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "benchmarks/training/component_map.hpp"

namespace tinyllama::training {

/// Follows the ranges that the model's layers open (model/component_range.hpp) for as long as it
/// lives, on the thread that made it and on those that libtorch runs its backward on. A node of the
/// autograd graph belongs to the component whose range created it. All methods are thread-safe;
/// construct and destroy it on the same thread, one at a time in a process.
class ComponentTracker {
 public:
  /// Throws std::logic_error where another one lives.
  ComponentTracker();
  ~ComponentTracker();
  ComponentTracker(const ComponentTracker&) = delete;
  ComponentTracker& operator=(const ComponentTracker&) = delete;

  /// What the calling thread works for now: the innermost range or node. Between two nodes it is
  /// the last one's: that is when the engine adds up gradients which that node gave. "other" where
  /// nothing is known. The string lives as long as the tracker.
  const std::string& current() const;
  /// Of a node, by what RecordFunction::forwardThreadId() and seqNr(), or the same in a Kineto
  /// event, say of it. The string lives as long as the tracker.
  const std::string& of_node(uint64_t forward_thread, int64_t sequence) const;
  /// The backward is over: what follows on any thread no longer belongs to its last node.
  void end_backward();
  /// Forgets the nodes of graphs that are gone, so that memory stays bounded; open ranges stay.
  void clear();

 private:
  struct ThreadState {
    ComponentMap created;                  // by this thread's forward
    std::vector<const std::string*> open;  // ranges and nodes, outermost first
    const std::string* last_node = nullptr;
  };

  static std::unique_ptr<at::ObserverContext> begin_range(const at::RecordFunction& range);
  static void end_range(const at::RecordFunction& range, at::ObserverContext* context);
  static std::unique_ptr<at::ObserverContext> begin_node(const at::RecordFunction& node);
  static void end_node(const at::RecordFunction& node, at::ObserverContext* context);

  ThreadState& state(uint64_t thread) const;
  const std::string& component_of(uint64_t forward_thread, int64_t sequence) const;

  mutable std::mutex mutex_;
  mutable std::unordered_map<uint64_t, ThreadState> threads_;
  std::vector<at::CallbackHandle> callbacks_;
};

}  // namespace tinyllama::training

// Ranges that the model's layers and the training loop open: which component and which phase of a
// step the work at hand belongs to. docs/training_files.md lists the names.
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tinyllama::training {

/// The parts of a training step, as the profiling summary's breakdown has them.
enum class Phase { data_loading, forward, backward, optimizer, evaluation, other };

inline constexpr std::array kPhases = {Phase::data_loading, Phase::forward,    Phase::backward,
                                       Phase::optimizer,    Phase::evaluation, Phase::other};

constexpr std::string_view to_string(Phase phase) {
  constexpr std::array<std::string_view, kPhases.size()> names = {
      "data_loading", "forward", "backward", "optimizer", "evaluation", "other"};
  return names[static_cast<size_t>(phase)];
}

inline constexpr std::string_view kOtherComponent = "other";
/// Ranges of a whole step, which TensorBoard looks for, begin like this.
inline constexpr std::string_view kStepRangePrefix = "ProfilerStep#";

/// Whether a range marks a step or a phase of it, and not a part of the model.
inline bool is_structural_range(std::string_view name) {
  return name.starts_with(kStepRangePrefix) || name == to_string(Phase::forward) ||
         name == to_string(Phase::backward);
}

/// Follows the ranges that the model's layers open (model/component_range.hpp) for as long as it
/// lives, on the thread that made it and on those that libtorch runs its backward on. A node of the
/// autograd graph belongs to the innermost component whose range created it. All methods are
/// thread-safe; construct and destroy it on the same thread, one at a time in a process. Strings
/// that it returns live as long as it does.
class ComponentTracker {
 public:
  /// `emits_nodes`: a node is a range of RangeEmitter's too, under its component's name. Throws
  /// std::logic_error where another one lives.
  explicit ComponentTracker(bool emits_nodes = false);
  ~ComponentTracker();
  ComponentTracker(const ComponentTracker&) = delete;
  ComponentTracker& operator=(const ComponentTracker&) = delete;

  /// What the calling thread works for now: the innermost range or node. Between two nodes it is
  /// the last one's: that is when the engine adds up gradients which that node gave. "other" where
  /// nothing is known.
  const std::string& current() const;
  /// The component of a node of the autograd graph, which RecordFunction::forwardThreadId() and
  /// seqNr(), or the same figures of a Kineto event, identify. "other" for nodes outside every
  /// range and for those without a number (below 0).
  const std::string& of_node(uint64_t forward_thread, int64_t sequence) const;
  /// The backward is over: what follows on any thread no longer belongs to its last node.
  void end_backward();
  /// Forgets the nodes of graphs that are gone, so that memory does not grow; open ranges stay.
  void clear();

 private:
  using Name = const std::string*;  // in names_
  /// Autograd numbers the nodes that a thread creates in order (at::sequence_number::peek() is the
  /// next number), so what a range created are the numbers from its begin to before its end.
  struct ThreadState {
    struct Boundary {
      uint64_t first;  // from this number on, until the next boundary,
      Name component;  // nodes belong to this component
    };
    std::vector<Boundary> created;  // by this thread's forward
    std::vector<Name> ranges;       // open ones, outermost first
    std::vector<Name> open;         // the same and backward nodes
    Name last_node = nullptr;
  };

  static std::unique_ptr<at::ObserverContext> begin_range(const at::RecordFunction& range);
  static void end_range(const at::RecordFunction& range, at::ObserverContext* context);
  static std::unique_ptr<at::ObserverContext> begin_node(const at::RecordFunction& node);
  static void end_node(const at::RecordFunction& node, at::ObserverContext* context);

  template <typename Work>
  static void with_thread_of(const at::RecordFunction& function, Work work);
  void mark_boundary(ThreadState& state) const;
  Name component_of(uint64_t forward_thread, int64_t sequence) const;

  const bool emits_nodes_;
  mutable std::mutex mutex_;
  std::set<std::string, std::less<>> names_;
  const Name other_;
  mutable std::unordered_map<uint64_t, ThreadState> threads_;
  std::vector<at::CallbackHandle> callbacks_;
};

/// While it lives, every range (component, phase) is pushed and popped as roctx range (ROCm), NVTX
/// range (CUDA) or ITT task (CPU, VTune), whichever this libtorch was built with: rocprofv3, Nsight
/// Systems and VTune show them. See docs/vendor_profilers.md. Construct and destroy it on the
/// thread that trains.
class RangeEmitter {
 public:
  /// `with_backward`: the backward too, whose nodes have the range of the component whose forward
  /// created them, on whichever thread runs them; a ComponentTracker lives for it. Throws
  /// std::invalid_argument where this libtorch has none of these ranges.
  explicit RangeEmitter(bool with_backward);
  ~RangeEmitter();
  RangeEmitter(const RangeEmitter&) = delete;
  RangeEmitter& operator=(const RangeEmitter&) = delete;

 private:
  std::optional<ComponentTracker> tracker_;
  at::CallbackHandle callback_;
};

}  // namespace tinyllama::training

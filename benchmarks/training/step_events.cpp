#include "benchmarks/training/step_events.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "benchmarks/instruments/operator_profile.hpp"
#include "benchmarks/training/component_names.hpp"

namespace tinyllama::training {
namespace {

using torch::autograd::profiler::KinetoEvent;

constexpr double kNanoseconds = 1e-9;
constexpr std::string_view kMemoryEvent = "[memory]";
constexpr std::string_view kEngineNode = "autograd::engine::evaluate_function: ";

double seconds(const KinetoEvent& event) {
  return static_cast<double>(event.durationNs()) * kNanoseconds;
}

bool is_range(const KinetoEvent& event) {
  return event.scope() == static_cast<uint8_t>(at::RecordScope::USER_SCOPE);
}

bool is_backward_node(const KinetoEvent& event) {
  return event.scope() == static_cast<uint8_t>(at::RecordScope::BACKWARD_FUNCTION) ||
         event.name().starts_with(kEngineNode);
}

std::string shapes_text(const KinetoEvent& event) {
  if (!event.hasShapes()) return {};
  std::vector<std::string> shapes;
  for (const auto& shape : event.shapes()) shapes.push_back(fmt::format("{}", shape));
  return fmt::format("[{}]", fmt::join(shapes, ", "));
}

// Walks the host's events of each thread in the order in which they began, and keeps those that
// are still open.
class Nesting {
 public:
  Nesting(uint64_t main_thread, const NodeComponents& component_of_node, StepEvents& step)
      : main_thread_(main_thread), component_of_node_(component_of_node), step_(step) {}

  void visit(const KinetoEvent& event) {
    if (event.startThreadId() != thread_) {
      open_.clear();
      thread_ = event.startThreadId();
    }
    while (!open_.empty() && open_.back().event->endNs() <= event.startNs()) open_.pop_back();
    if (event.name() == kMemoryEvent) return add_memory(event);
    if (is_range(event)) {
      open_.push_back({&event, kNone});
      return;
    }
    add_operator(event);
  }

  /// Device time of work that the operator with this correlation launched. A replayed graph's has
  /// no such operator.
  void add_device_work(const KinetoEvent& work) {
    const auto launcher = by_correlation_.find(work.linkedCorrelationId());
    if (launcher == by_correlation_.end()) {
      step_.unlinked_device_seconds += seconds(work);
      return;
    }
    size_t index = launcher->second;
    step_.operators[index].device_self_seconds += seconds(work);
    for (; index != kNone; index = parent_[index])
      step_.operators[index].device_total_seconds += seconds(work);
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Open {
    const KinetoEvent* event;
    size_t index;  // of the operator; kNone for a range
  };

  size_t enclosing_operator() const {
    for (auto open = open_.rbegin(); open != open_.rend(); ++open) {
      if (open->index != kNone) return open->index;
    }
    return kNone;
  }

  void add_memory(const KinetoEvent& event) {
    const size_t owner = enclosing_operator();
    if (owner != kNone) step_.operators[owner].self_bytes += event.nBytes();
  }

  void add_operator(const KinetoEvent& event) {
    const size_t parent = enclosing_operator();
    OperatorEvent op;
    op.name = event.name();
    op.is_backward_node = is_backward_node(event);
    op.total_seconds = op.self_seconds = seconds(event);
    op.input_shapes = shapes_text(event);
    if (parent != kNone) step_.operators[parent].self_seconds -= seconds(event);
    if (parent == kNone && event.startThreadId() == main_thread_)
      step_.covered_seconds += seconds(event);
    open_.push_back({&event, step_.operators.size()});
    describe_place(op);
    by_correlation_[event.correlationId()] = step_.operators.size();
    parent_.push_back(parent);
    step_.operators.push_back(std::move(op));
  }

  // The innermost range or autograd node says which part of the model this is.
  void describe_place(OperatorEvent& op) const {
    for (auto open = open_.rbegin(); open != open_.rend(); ++open) {
      const KinetoEvent& event = *open->event;
      const bool range = open->index == kNone;
      const bool node = !range && is_backward_node(event);
      op.in_backward |= node || (range && event.name() == to_string(Phase::backward));
      // The model's own ranges inside an evaluation are no part of the training step.
      if (range && event.name() == to_string(Phase::evaluation)) op.component = event.name();
      if (!op.component.empty()) continue;
      if (range) op.component = event.name();
      if (node && event.sequenceNr() >= 0)
        op.component = component_of_node_(event.fwdThreadId(), event.sequenceNr());
      if (is_structural_range(op.component) || op.component == kOtherComponent)
        op.component.clear();
    }
    if (op.component.empty()) op.component = kOtherComponent;
    // The number of the step would tell apart what is the same.
    for (size_t i = 0; i + 1 < open_.size(); ++i) {
      const std::string name = open_[i].event->name();
      if (!name.starts_with(kStepRangePrefix)) op.parents.push_back(name);
    }
  }

  uint64_t main_thread_;
  const NodeComponents& component_of_node_;
  StepEvents& step_;
  std::vector<Open> open_;
  std::vector<size_t> parent_;
  std::unordered_map<uint64_t, size_t> by_correlation_;
  uint64_t thread_ = 0;
};

std::vector<const KinetoEvent*> host_events(
    const torch::autograd::profiler::ProfilerResult& result) {
  std::vector<const KinetoEvent*> events;
  for (const KinetoEvent& event : result.events()) {
    if (instruments::is_host_work(event) || event.name() == kMemoryEvent) events.push_back(&event);
  }
  std::ranges::stable_sort(events, [](const KinetoEvent* a, const KinetoEvent* b) {
    return std::tuple(a->startThreadId(), a->startNs(), b->endNs()) <
           std::tuple(b->startThreadId(), b->startNs(), a->endNs());
  });
  return events;
}

void read_device_events(const torch::autograd::profiler::ProfilerResult& result,
                        const instruments::Device& device, Nesting& nesting, StepEvents& step) {
  step.kernels = 0;
  step.transfers = 0;
  step.device_seconds = 0;
  for (const KinetoEvent& event : result.events()) {
    if (!instruments::is_device_work(event, device)) continue;
    *step.device_seconds += seconds(event);
    nesting.add_device_work(event);
    if (instruments::is_transfer(event, device)) ++*step.transfers;
    if (!instruments::is_kernel(event, device)) continue;
    ++*step.kernels;
    step.kernel_names.push_back(event.name());
  }
}

}  // namespace

StepEvents read_step_events(const torch::autograd::profiler::ProfilerResult& result,
                            const instruments::Device& device,
                            const NodeComponents& component_of_node) {
  StepEvents step;
  const auto events = host_events(result);
  uint64_t main_thread = 0;
  // The step's own range tells how long it took, and which thread ran it.
  for (const KinetoEvent* event : events) {
    if (!is_range(*event) || !event->name().starts_with(kStepRangePrefix)) continue;
    step.seconds = seconds(*event);
    main_thread = event->startThreadId();
  }
  Nesting nesting(main_thread, component_of_node, step);
  for (const KinetoEvent* event : events) nesting.visit(*event);
  if (device.is_gpu()) read_device_events(result, device, nesting, step);
  return step;
}

}  // namespace tinyllama::training

#include "benchmarks/training/operator_recording.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "benchmarks/instruments/operator_profile.hpp"
#include "benchmarks/instruments/trace_file.hpp"

namespace tinyllama::training {
namespace {

using Json = nlohmann::ordered_json;
using torch::autograd::profiler::KinetoEvent;
using torch::autograd::profiler::ProfilerResult;

constexpr double kNanoseconds = 1e-9;
constexpr std::string_view kMemoryEvent = "[memory]";
constexpr std::string_view kEngineNode = "autograd::engine::evaluate_function: ";

constexpr std::string_view kGpuOverhead =
    "100 x (1 - seconds of kernels, copies and fills / step seconds): the share of the step in "
    "which the GPU did nothing";
constexpr std::string_view kCpuOverhead =
    "share of the step spent in the library and not on elements: own time of operators that touch "
    "none (views, allocations, callers of others), of autograd nodes, and time outside operators";

struct OperatorEvent {
  std::string name;
  bool is_backward_node = false;  ///< of the autograd graph, not of the dispatcher
  double total_seconds = 0;
  double self_seconds = 0;  ///< without the operators it calls
  double device_total_seconds = 0;
  double device_self_seconds = 0;  ///< of the kernels that it launched itself
  int64_t self_bytes = 0;          ///< allocated less freed, by itself
  bool in_backward = false;
  std::string component;             ///< path, or "other"
  std::string input_shapes;          ///< "[[8, 128, 256], [256, 256]]"; empty where not recorded
  std::vector<std::string> parents;  ///< enclosing ranges and operators, outermost first
};

/// What Kineto recorded of a step.
struct StepEvents {
  std::vector<OperatorEvent> operators;
  double seconds = 0;          ///< from the first event's begin to the last one's end
  double covered_seconds = 0;  ///< of it, inside some operator on the main thread
  int64_t transfers = 0;
  instruments::SeenWork seen;          ///< on a GPU
  double unlinked_device_seconds = 0;  ///< of them, launched by no operator
  std::vector<std::string> kernel_names;
};

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
  Nesting(uint64_t main_thread, const ComponentTracker& tracker, StepEvents& step)
      : main_thread_(main_thread), tracker_(tracker), step_(step) {}

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
        op.component = tracker_.of_node(event.fwdThreadId(), event.sequenceNr());
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
  const ComponentTracker& tracker_;
  StepEvents& step_;
  std::vector<Open> open_;
  std::vector<size_t> parent_;
  std::unordered_map<uint64_t, size_t> by_correlation_;
  uint64_t thread_ = 0;
};

StepEvents read_step_events(const ProfilerResult& result, const instruments::Device& device,
                            const ComponentTracker& tracker) {
  std::vector<const KinetoEvent*> events;
  for (const KinetoEvent& event : result.events()) {
    if (instruments::is_host_work(event) || event.name() == kMemoryEvent) events.push_back(&event);
  }
  std::ranges::stable_sort(events, instruments::opens_before);
  StepEvents step;
  uint64_t main_thread = 0;
  // The step's own range tells how long it took, and which thread ran it.
  for (const KinetoEvent* event : events) {
    if (!is_range(*event) || !event->name().starts_with(kStepRangePrefix)) continue;
    step.seconds = seconds(*event);
    main_thread = event->startThreadId();
  }
  Nesting nesting(main_thread, tracker, step);
  for (const KinetoEvent* event : events) nesting.visit(*event);
  if (!device.is_gpu()) return step;
  for (const KinetoEvent& event : result.events()) {
    step.seen.add(event, device);
    if (!instruments::is_device_work(event, device)) continue;
    nesting.add_device_work(event);
    if (instruments::is_transfer(event, device)) ++step.transfers;
    if (instruments::is_kernel(event, device)) step.kernel_names.push_back(event.name());
  }
  return step;
}

// The attention's, not that of the loss.
bool is_softmax(std::string_view name) {
  return name == "aten::_softmax" || name == "aten::_softmax_backward_data";
}

bool is_projection(const OperatorEvent& event) {
  return instruments::is_gemm(event.name) && !event.in_backward &&
         (event.component.ends_with("_proj") || event.component == "loss/lm_head") &&
         // autocast records a matrix multiplication inside itself
         (event.parents.empty() || !instruments::is_gemm(event.parents.back()));
}

double percent(double part, double whole) {
  return whole > 0 ? 100.0 * part / whole : 0.0;
}

std::string trace_name(int64_t first, int64_t last) {
  return fmt::format("trace_step_{}_{}.json", first, last);
}

// <worker>.<nanoseconds>.pt.trace.json is what TensorBoard's plugin looks for.
std::string tensorboard_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("tiny_llama_train.{}.pt.trace.json",
                     std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// Where a folder takes no second name for a file; never half a copy.
void copy_whole(const std::filesystem::path& from, const std::filesystem::path& to) {
  auto part = to;
  part += ".part";
  try {
    std::filesystem::copy_file(from, part);
    std::filesystem::rename(part, to);
  } catch (...) {
    std::error_code absent;
    std::filesystem::remove(part, absent);
    throw;
  }
}

}  // namespace

/// What the recorded steps add up to, operator by operator and component by component. Holds sums
/// only, so that any number of steps fits.
class OperatorRecorder::Statistics {
 public:
  /// How the operator table is made.
  struct Table {
    bool shapes = false;  ///< whether it tells calls apart by them
    bool stacks = false;
    bool attention_only = false;
    OperatorOrder order = OperatorOrder::own_time;
  };

  Statistics(bool is_gpu, const Table& table) : is_gpu_(is_gpu), wanted_(table) {}

  int64_t steps() const { return steps_; }
  bool lacks_kernels() const { return !lack_.empty(); }

  void add(const StepEvents& step) {
    ++steps_;
    step_seconds_ += step.seconds;
    covered_seconds_ += step.covered_seconds;
    device_seconds_ += step.seen.seconds;
    if (step.unlinked_device_seconds > 0)
      on_device_.components[std::string(kOtherComponent)].forward += step.unlinked_device_seconds;
    kernels_ += step.seen.kernels;
    if (lack_.empty() && is_gpu_) lack_ = step.seen.lack();
    transfers_ += step.transfers;
    kernel_names_.insert(step.kernel_names.begin(), step.kernel_names.end());
    for (const OperatorEvent& event : step.operators) add(event);
  }

  StepComponents components() const {
    StepComponents all = sums();
    for (auto& [name, seconds] : all.components) seconds = per_step(seconds);
    all.softmax = per_step(all.softmax);
    return all;
  }

  /// `operators` of docs/training_files.md; the range of steps is the caller's to add.
  Json to_json() const {
    const auto of_gpu = [&](const Json& value) { return knows_device() ? value : Json(nullptr); };
    const double total = total_seconds();
    std::vector<std::pair<std::string, ComponentSeconds>> ordered;
    for (const auto& component : sums().components) ordered.push_back(component);
    std::ranges::stable_sort(ordered, std::greater<>(),
                             [](const auto& component) { return component.second.total(); });
    Json components = Json::array();
    for (const auto& [name, seconds] : ordered) {
      components.push_back({{"name", name},
                            {"forward_seconds", per_step(seconds).forward},
                            {"backward_seconds", per_step(seconds).backward},
                            {"percent", percent(seconds.total(), total)}});
    }
    return {{"steps", steps_},
            {"device_time", knows_device() ? "gpu" : "cpu"},
            {"distinct_operators", names_.size()},
            {"operator_calls_per_step", per_step(calls_)},
            {"kernels_per_step", of_gpu(per_step(kernels_))},
            {"distinct_kernels", of_gpu(kernel_names_.size())},
            {"matrix_product_percent", percent(sums().matrix_multiplications, total)},
            {"softmax_percent", percent(sums().softmax.total(), total)},
            {"linear_projections_per_step", per_step(projections_)},
            {"launch_overhead_percent", launch_overhead_percent()},
            {"launch_overhead_definition", launch_overhead_definition()},
            {"transfers_per_step", of_gpu(per_step(transfers_))},
            {"components", components},
            {"table_order", order_text()},
            {"table_of", wanted_.attention_only ? "attention" : "all components"},
            {"table", table()}};
  }

 private:
  struct Row {
    int64_t calls = 0;
    double cpu_self = 0;
    double cpu_total = 0;
    double device_self = 0;
    double device_total = 0;
    int64_t bytes = 0;
    bool is_backward_node = false;
  };
  struct Sums : StepComponents {
    double matrix_multiplications = 0;
  };
  // name, shapes, stack
  using Key = std::tuple<std::string, std::string, std::vector<std::string>>;

  void add_to_table(const OperatorEvent& event) {
    if (wanted_.attention_only && !event.component.starts_with("attention")) return;
    Row& row = rows_[{event.name, wanted_.shapes ? event.input_shapes : "",
                      wanted_.stacks ? event.parents : std::vector<std::string>{}}];
    ++row.calls;
    row.cpu_self += event.self_seconds;
    row.cpu_total += event.total_seconds;
    row.device_self += event.device_self_seconds;
    row.device_total += event.device_total_seconds;
    row.bytes += event.self_bytes;
    row.is_backward_node = event.is_backward_node;
  }

  void add(const OperatorEvent& event) {
    add_to_table(event);
    if (!event.is_backward_node) names_.insert(event.name);
    if (!event.is_backward_node) ++calls_;
    if (is_projection(event)) ++projections_;
    add(event, event.self_seconds, on_host_);
    if (is_gpu_) add(event, event.device_self_seconds, on_device_);
    if (event.is_backward_node || instruments::is_dispatch_only(event.name))
      dispatch_seconds_ += event.self_seconds;
  }

  static void add(const OperatorEvent& event, double seconds, Sums& sums) {
    const auto add_to = [&](ComponentSeconds& sum) {
      (event.in_backward ? sum.backward : sum.forward) += seconds;
    };
    add_to(sums.components[event.component]);
    if (is_softmax(event.name)) add_to(sums.softmax);
    if (instruments::is_gemm(event.name)) sums.matrix_multiplications += seconds;
  }

  /// Shares are of the GPU's time where there is one, all of whose work was seen; else the host's.
  bool knows_device() const { return is_gpu_ && lack_.empty(); }
  const Sums& sums() const { return knows_device() ? on_device_ : on_host_; }

  double total_seconds() const {
    double total = 0;
    for (const auto& [name, seconds] : sums().components) total += seconds.total();
    return total;
  }

  Json launch_overhead_percent() const {
    if (!lack_.empty()) return nullptr;
    if (is_gpu_) return std::max(0.0, 100.0 - percent(device_seconds_, step_seconds_));
    return percent(dispatch_seconds_ + step_seconds_ - covered_seconds_, step_seconds_);
  }

  std::string launch_overhead_definition() const {
    if (!lack_.empty())
      return fmt::format("unknown, as all of the GPU: {}; shares are of the host's time", lack_);
    return std::string(is_gpu_ ? kGpuOverhead : kCpuOverhead);
  }

  double per_step(double sum) const {
    return sum / static_cast<double>(std::max<int64_t>(steps_, 1));
  }
  double per_step(int64_t sum) const { return per_step(static_cast<double>(sum)); }
  ComponentSeconds per_step(const ComponentSeconds& sum) const {
    return {per_step(sum.forward), per_step(sum.backward)};
  }

  std::string order_text() const {
    const char* const device = knows_device() ? "GPU" : "CPU";
    switch (wanted_.order) {
      case OperatorOrder::own_time:
        return fmt::format("own time ({})", device);
      case OperatorOrder::time:
        return fmt::format("time with what it calls ({})", device);
      case OperatorOrder::own_cpu_time:
        return "own time (CPU)";
      case OperatorOrder::cpu_time:
        return "time with what it calls (CPU)";
      case OperatorOrder::own_memory:
        return "memory that it allocates itself";
      case OperatorOrder::calls:
        return "calls";
    }
    return {};
  }

  double ordering(const Row& row) const {
    switch (wanted_.order) {
      case OperatorOrder::own_time:
        return knows_device() ? row.device_self : row.cpu_self;
      case OperatorOrder::time:
        return knows_device() ? row.device_total : row.cpu_total;
      case OperatorOrder::own_cpu_time:
        return row.cpu_self;
      case OperatorOrder::cpu_time:
        return row.cpu_total;
      case OperatorOrder::own_memory:
        return static_cast<double>(row.bytes);
      case OperatorOrder::calls:
        return static_cast<double>(row.calls);
    }
    return 0;
  }

  Json table() const {
    const auto own = [&](const Row& row) {
      return knows_device() ? row.device_self : row.cpu_self;
    };
    std::vector<const std::pair<const Key, Row>*> rows;
    for (const auto& row : rows_) rows.push_back(&row);
    std::ranges::stable_sort(rows, std::greater<>(),
                             [&](const auto* row) { return ordering(row->second); });
    const double total = total_seconds();
    Json table = Json::array();
    for (const auto* entry : rows) {
      const auto& [name, shapes, stack] = entry->first;
      const Row& row = entry->second;
      Json cells = {
          {"name", name},
          {"calls", row.calls},
          {"cpu_self_seconds", row.cpu_self},
          {"cpu_total_seconds", row.cpu_total},
          {"device_self_seconds", knows_device() ? Json(row.device_self) : Json(nullptr)},
          {"device_total_seconds", knows_device() ? Json(row.device_total) : Json(nullptr)},
          {"share_percent", percent(own(row), total)},
          {"self_memory_bytes", row.bytes}};
      if (wanted_.shapes) cells["input_shapes"] = shapes;
      if (wanted_.stacks) cells["stack"] = stack;
      table.push_back(cells);
    }
    return table;
  }

  bool is_gpu_;
  Table wanted_;
  std::set<std::string> names_;
  int64_t steps_ = 0;
  std::map<Key, Row> rows_;
  Sums on_host_;
  Sums on_device_;
  std::string lack_;  ///< of the first step whose kernels were not all seen
  std::set<std::string> kernel_names_;
  double step_seconds_ = 0;
  double covered_seconds_ = 0;
  double device_seconds_ = 0;
  double dispatch_seconds_ = 0;
  int64_t calls_ = 0;
  int64_t projections_ = 0;
  int64_t kernels_ = 0;
  int64_t transfers_ = 0;
};

OperatorRecorder::OperatorRecorder(const TrainOptions& options, const instruments::Device& device,
                                   const std::filesystem::path& folder)
    : operator_steps_(options.operator_steps()),
      flops_steps_(options.flops_steps()),
      device_(device),
      detail_({.shapes = options.profile_operators, .memory = true}),
      folder_(folder),
      statistics_(std::make_unique<Statistics>(
          device.is_gpu(),
          Statistics::Table{options.profile_operators, options.profile_stacks,
                            options.profile_attention_only, options.operator_order})),
      flops_statistics_(std::make_unique<Statistics>(device.is_gpu(), Statistics::Table{})) {
  if (operator_steps_.empty()) return;
  trace_ = std::make_unique<instruments::TraceFile>(
      folder / trace_name(operator_steps_.first, operator_steps_.last));
}

OperatorRecorder::~OperatorRecorder() {
  // In the order in which they were opened, should a step have thrown.
  step_range_.reset();
  session_.reset();
  tracker_.reset();
}

bool OperatorRecorder::wants(int64_t step) const {
  return operator_steps_.contains(step) || flops_steps_.contains(step);
}

void OperatorRecorder::begin_step(int64_t step) {
  step_ = step;
  tracker_ = std::make_unique<ComponentTracker>();
  session_ = std::make_unique<instruments::KinetoSession>(device_, detail_);
  step_range_name_ = fmt::format("{}{}", kStepRangePrefix, step);
  step_range_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  step_range_->before(step_range_name_.c_str());
}

void OperatorRecorder::end_step() {
  device_.synchronize();
  step_range_.reset();
  const auto result = session_->stop();
  session_.reset();
  const StepEvents events = read_step_events(*result, device_, *tracker_);
  tracker_.reset();
  if (flops_steps_.contains(step_)) flops_statistics_->add(events);
  if (!operator_steps_.contains(step_)) return;
  statistics_->add(events);
  last_recorded_ = step_;
  try {
    trace_->append(*result);
  } catch (...) {
    trace_.reset();  // what it holds so far must not become a file
    throw;
  }
}

std::vector<std::string> OperatorRecorder::finish() {
  if (!trace_ || last_recorded_ == 0) return {};
  const auto path = folder_ / trace_name(operator_steps_.first, last_recorded_);
  trace_->finish(path);
  trace_.reset();
  const auto copy = folder_ / tensorboard_name();
  std::error_code refused;
  std::filesystem::create_hard_link(path, copy, refused);
  if (refused) copy_whole(path, copy);
  return {path.filename().string(), copy.filename().string()};
}

Json OperatorRecorder::to_json() const {
  if (statistics_->steps() == 0) return nullptr;
  Json json = {{"first_step", operator_steps_.first}, {"last_step", last_recorded_}};
  json.update(statistics_->to_json());
  return json;
}

std::optional<StepComponents> OperatorRecorder::flops_components() const {
  if (flops_statistics_->steps() == 0 || flops_statistics_->lacks_kernels()) return std::nullopt;
  return flops_statistics_->components();
}

}  // namespace tinyllama::training

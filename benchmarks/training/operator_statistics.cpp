#include "benchmarks/training/operator_statistics.hpp"

#include <algorithm>
#include <string_view>

#include "benchmarks/instruments/operator_profile.hpp"
#include "benchmarks/training/component_names.hpp"

namespace tinyllama::training {
namespace {

constexpr std::string_view kGpuOverhead =
    "100 x (1 - seconds of kernels, copies and fills / step seconds): the share of the step in "
    "which the GPU did nothing";
constexpr std::string_view kCpuOverhead =
    "share of the step spent in the library and not on elements: own time of operators that touch "
    "none (views, allocations, callers of others), of autograd nodes, and time outside operators";

bool is_product(std::string_view name) {
  return instruments::is_counted_product(name) || instruments::is_onednn_product(name);
}

// The attention's, not that of the loss.
bool is_softmax(std::string_view name) {
  return name == "aten::_softmax" || name == "aten::_softmax_backward_data";
}

bool is_projection(const OperatorEvent& event) {
  return is_product(event.name) && !event.in_backward &&
         (event.component.ends_with("_proj") || event.component == "loss/lm_head") &&
         // autocast records a product inside itself
         (event.parents.empty() || !is_product(event.parents.back()));
}

double percent(double part, double whole) {
  return whole > 0 ? 100.0 * part / whole : 0.0;
}

}  // namespace

void OperatorStatistics::add(const StepEvents& step) {
  ++steps_;
  step_seconds_ += step.seconds;
  covered_seconds_ += step.covered_seconds;
  device_seconds_ += step.device_seconds.value_or(0);
  if (step.unlinked_device_seconds > 0)
    components_[std::string(kOtherComponent)].forward += step.unlinked_device_seconds;
  kernels_ += step.kernels.value_or(0);
  transfers_ += step.transfers.value_or(0);
  kernel_names_.insert(step.kernel_names.begin(), step.kernel_names.end());
  for (const OperatorEvent& event : step.operators) {
    Row& row = rows_[{event.name, detail_.shapes ? event.input_shapes : "",
                      detail_.stacks ? event.parents : std::vector<std::string>{}}];
    ++row.calls;
    row.cpu_self += event.self_seconds;
    row.cpu_total += event.total_seconds;
    row.device_self += event.device_self_seconds;
    row.device_total += event.device_total_seconds;
    row.bytes += event.self_bytes;
    row.is_backward_node = event.is_backward_node;
    if (!event.is_backward_node) ++calls_;
    if (is_projection(event)) ++projections_;
    const double seconds = clock_seconds(event);
    ComponentSeconds& component = components_[event.component];
    (event.in_backward ? component.backward : component.forward) += seconds;
    if (is_product(event.name)) product_seconds_ += seconds;
    if (is_softmax(event.name))
      (event.in_backward ? softmax_.backward : softmax_.forward) += seconds;
    if (event.is_backward_node || instruments::is_dispatch_only(event.name))
      dispatch_seconds_ += event.self_seconds;
  }
}

double OperatorStatistics::total_seconds() const {
  double total = 0;
  for (const auto& [name, seconds] : components_) total += seconds.total();
  return total;
}

double OperatorStatistics::launch_overhead_percent() const {
  if (is_gpu_) return std::max(0.0, 100.0 - percent(device_seconds_, step_seconds_));
  return percent(dispatch_seconds_ + step_seconds_ - covered_seconds_, step_seconds_);
}

ComponentSeconds OperatorStatistics::a_step(const ComponentSeconds& sum) const {
  const auto steps = static_cast<double>(std::max<int64_t>(steps_, 1));
  return {sum.forward / steps, sum.backward / steps};
}

std::map<std::string, ComponentSeconds> OperatorStatistics::component_seconds() const {
  auto all = components_;
  for (auto& [name, seconds] : all) seconds = a_step(seconds);
  return all;
}

ComponentSeconds OperatorStatistics::softmax_seconds() const {
  return a_step(softmax_);
}

Json OperatorStatistics::table() const {
  const auto own = [&](const Row& row) { return is_gpu_ ? row.device_self : row.cpu_self; };
  std::vector<const std::pair<const Key, Row>*> rows;
  for (const auto& row : rows_) rows.push_back(&row);
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const auto* a, const auto* b) { return own(a->second) > own(b->second); });
  const double total = total_seconds();
  Json table = Json::array();
  for (const auto* entry : rows) {
    const auto& [name, shapes, stack] = entry->first;
    const Row& row = entry->second;
    Json cells = {{"name", name},
                  {"calls", row.calls},
                  {"cpu_self_seconds", row.cpu_self},
                  {"cpu_total_seconds", row.cpu_total},
                  {"device_self_seconds", is_gpu_ ? Json(row.device_self) : Json(nullptr)},
                  {"device_total_seconds", is_gpu_ ? Json(row.device_total) : Json(nullptr)},
                  {"share_percent", percent(own(row), total)},
                  {"self_memory_bytes", row.bytes}};
    if (detail_.shapes) cells["input_shapes"] = shapes;
    if (detail_.stacks) cells["stack"] = stack;
    table.push_back(cells);
  }
  return table;
}

Json OperatorStatistics::to_json() const {
  const auto per_step = [&](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(std::max<int64_t>(steps_, 1));
  };
  const auto of_gpu = [&](const Json& value) { return is_gpu_ ? value : Json(nullptr); };
  std::set<std::string> names;
  for (const auto& [key, row] : rows_) {
    if (!row.is_backward_node) names.insert(std::get<0>(key));
  }
  const double total = total_seconds();
  std::vector<std::pair<std::string, ComponentSeconds>> ordered;
  for (const auto& component : component_seconds()) ordered.push_back(component);
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return a.second.total() > b.second.total();
  });
  Json components = Json::array();
  for (const auto& [name, seconds] : ordered) {
    components.push_back(
        {{"name", name},
         {"forward_seconds", seconds.forward},
         {"backward_seconds", seconds.backward},
         {"percent", percent(seconds.total() * static_cast<double>(steps_), total)}});
  }
  return {{"steps", steps_},
          {"device_time", is_gpu_ ? "gpu" : "cpu"},
          {"distinct_operators", names.size()},
          {"operator_calls_per_step", per_step(calls_)},
          {"kernels_per_step", of_gpu(per_step(kernels_))},
          {"distinct_kernels", of_gpu(kernel_names_.size())},
          {"matrix_product_percent", percent(product_seconds_, total)},
          {"softmax_percent", percent(softmax_.total(), total)},
          {"linear_projections_per_step", per_step(projections_)},
          {"launch_overhead_percent", launch_overhead_percent()},
          {"launch_overhead_definition", is_gpu_ ? kGpuOverhead : kCpuOverhead},
          {"transfers_per_step", of_gpu(per_step(transfers_))},
          {"components", components},
          {"table", table()}};
}

}  // namespace tinyllama::training

#include "benchmarks/harness/case.hpp"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

namespace tinyllama::harness {
namespace {

// Work keeps an eighth at the least of the bytes that it has to move.
double least_bytes(const Cost& cost) {
  return static_cast<double>(cost.bytes) / 8;
}

}  // namespace

std::string Case::name() const {
  return fmt::format("{}/{}/{}/{}/{}/batch:{}/seq:{}", component->name, to_string(pass),
                     workload.variant.name(), size, to_string(workload.dtype), workload.batch,
                     workload.seq);
}

std::string Case::point() const {
  Case baseline = *this;
  baseline.workload.variant = Variant();
  return baseline.name();
}

bool Case::is_beyond_any_device() const {
  return least_bytes(cost()) >= kBeyondAnyDevice;
}

const PredictedMemory& Case::memory() const {
  if (known_memory) return *known_memory;
  if (is_beyond_any_device()) return known_memory.emplace(beyond_any_device(least_bytes(cost())));
  Workload predicted = workload;
  if (!workload.variant.runs_on_meta()) predicted.variant = workload.variant.without_operators();
  known_memory = predict_memory(workload.device, [&] {
    const std::shared_ptr<WorkItem> item = component->build(
        {predicted, pass, /*seed=*/0, c10::Device(c10::DeviceType::Meta), nullptr, std::nullopt});
    return WorkOnMeta{[item] {
                        item->prepare();
                        item->run();
                      },
                      item->parameters(), item->optimizer_state()};
  });
  return *known_memory;
}

void WorkItem::change_inputs(uint64_t /*seed*/, int64_t /*distinct*/) {
  throw std::logic_error("this kind of work has no change_inputs(), which its proof needs");
}

LayerWork::LayerWork(Layer layer, Pass pass, Dtype dtype, c10::DeviceType device)
    : layer_(std::move(layer)),
      leaves_(layer_.inputs),
      pass_(pass),
      dtype_(dtype),
      device_(device) {
  append(leaves_, layer_.parameters);
}

void LayerWork::prepare() {
  outputs_.clear();
  for (auto& [name, leaf] : leaves_) leaf.mutable_grad().reset();
  if (pass_ == Pass::backward) forward();
}

void LayerWork::run() {
  if (pass_ != Pass::backward) forward();
  if (has_backward(pass_)) backward();
}

// A backward adds to the gradients that prepare() takes away.
bool LayerWork::runs_in_a_row() const {
  return !has_backward(pass_);
}

NamedTensors LayerWork::results() const {
  NamedTensors all;
  for (const auto& [name, output] : outputs_) all.emplace_back(name, output.detach());
  if (!has_backward(pass_)) return all;
  for (const auto& [name, leaf] : leaves_) all.emplace_back("gradient of " + name, leaf.grad());
  return all;
}

NamedTensors LayerWork::givens() const {
  NamedTensors all = leaves_;
  for (const at::Tensor& gradient : layer_.output_gradients)
    all.emplace_back("gradient of an output", gradient);
  if (layer_.tokens.tokens.defined()) all.emplace_back("tokens", layer_.tokens.tokens);
  if (layer_.tokens.targets.defined()) all.emplace_back("targets", layer_.tokens.targets);
  return all;
}

void LayerWork::change_inputs(uint64_t seed, int64_t distinct) {
  reverse_in_place(layer_.parameters);
  const c10::Device device =
      leaves_.empty() ? c10::Device(device_) : leaves_.front().second.device();
  ChangedInputs changed(seed, distinct, dtype_, device);
  for (const auto& [name, input] : layer_.inputs) changed.fill_with_large(input);
  changed.fill(layer_.tokens);
  for (const at::Tensor& gradient : layer_.output_gradients) changed.fill(gradient);
}

std::vector<std::string> LayerWork::without_gradient() const {
  std::set<const torch::autograd::Node*> seen;
  std::set<const at::TensorImpl*> reached;
  std::vector<torch::autograd::Node*> left;
  for (const auto& [name, output] : outputs_) left.push_back(output.grad_fn().get());
  while (!left.empty()) {
    torch::autograd::Node* node = left.back();
    left.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node))
      reached.insert(leaf->variable.unsafeGetTensorImpl());
    for (const auto& edge : node->next_edges()) left.push_back(edge.function.get());
  }
  std::vector<std::string> names;
  for (const auto& [name, leaf] : leaves_) {
    if (!reached.contains(leaf.unsafeGetTensorImpl())) names.push_back(name);
  }
  return names;
}

void LayerWork::forward() {
  const AutocastScope autocast(dtype_, device_);
  outputs_ = layer_.forward();
}

void LayerWork::backward() {
  std::vector<at::Tensor> roots;
  for (const auto& [name, output] : outputs_) roots.push_back(output);
  torch::autograd::backward(roots, layer_.output_gradients);
}

}  // namespace tinyllama::harness

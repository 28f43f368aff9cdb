#include "benchmarks/harness/layer_work.hpp"

#include <torch/csrc/autograd/autograd.h>

#include <utility>

namespace tinyllama::harness {

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

NamedTensors LayerWork::results() const {
  NamedTensors all;
  for (const auto& [name, output] : outputs_) all.emplace_back(name, output.detach());
  if (!has_backward(pass_)) return all;
  for (const auto& [name, leaf] : leaves_) all.emplace_back("gradient of " + name, leaf.grad());
  return all;
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

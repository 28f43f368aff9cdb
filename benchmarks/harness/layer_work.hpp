// The work item of a differentiable layer: its forward, its backward, or both.
#pragma once

#include <functional>
#include <vector>

#include "benchmarks/harness/case.hpp"

namespace tinyllama::harness {

/// A layer with its inputs, ready to be called.
struct Layer {
  /// Inputs whose gradients the backward computes; they must require gradients.
  NamedTensors inputs;
  NamedTensors parameters;
  /// Computes the outputs, each with its name; keeps alive whatever it needs.
  std::function<NamedTensors()> forward;
  /// One gradient an output to start the backward from; empty where the output is a loss.
  std::vector<at::Tensor> output_gradients;
};

class LayerWork final : public WorkItem {
 public:
  /// `pass`: forward, backward (its forward runs in prepare()), forward_backward; forward_loss
  /// counts as a forward.
  LayerWork(Layer layer, Pass pass, Dtype dtype, c10::DeviceType device);

  void prepare() override;
  void run() override;
  NamedTensors results() const override;
  NamedTensors parameters() const override { return layer_.parameters; }

 private:
  void forward();
  void backward();

  Layer layer_;
  NamedTensors leaves_;  // inputs and parameters: what gets gradients
  Pass pass_;
  Dtype dtype_;
  c10::DeviceType device_;
  NamedTensors outputs_;
};

}  // namespace tinyllama::harness

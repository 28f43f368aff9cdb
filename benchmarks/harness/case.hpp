// What is measured: a case, which is a component (how to build its work, what it costs) with a
// pass, variant, size, dtype, batch and sequence; and the work of a differentiable layer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/changed_inputs.hpp"
#include "benchmarks/instruments/device.hpp"
#include "model/cost.hpp"
#include "model/memory_prediction.hpp"
#include "model/model_hooks.hpp"
#include "model/parameters.hpp"
#include "model/weights.hpp"

namespace tinyllama::harness {

/// The work of one case, with its inputs and weights. One iteration is prepare() and then run().
class WorkItem {
 public:
  virtual ~WorkItem() = default;
  /// Untimed: drops what the last iteration left, and computes what this pass starts from.
  virtual void prepare() = 0;
  /// Timed: only the work.
  virtual void run() = 0;
  /// Whether several calls of run() in a row, without prepare() between, do the same work each.
  virtual bool runs_in_a_row() const { return false; }
  /// What the last run computed, by name: outputs or the loss, and after a backward every gradient
  /// as "gradient of <name>".
  virtual NamedTensors results() const = 0;
  /// What run() reads and must leave as it is: inputs, weights that it does not update, the
  /// gradients that a backward starts from.
  virtual NamedTensors givens() const { return {}; }
  /// Overwrites inputs, weights and state in place, before a prepare(). The new values depend on
  /// nothing but the seed, the shapes and `distinct`, so that one reference serves every dtype,
  /// variant and batch: the batch becomes copies of `distinct` samples. Throws std::logic_error
  /// where a kind of work does not implement it, and so cannot be proved with new inputs.
  virtual void change_inputs(uint64_t seed, int64_t distinct);
  /// Inputs and parameters that autograd's graph of the last results does not lead to: a backward
  /// would give them no gradient. What an operator leaves out in its own backward is not visible
  /// there.
  virtual std::vector<std::string> without_gradient() const { return {}; }
  /// The tensors that the memory prediction counts as weights (with their gradients), and as
  /// optimizer state.
  virtual NamedTensors parameters() const { return {}; }
  virtual NamedTensors optimizer_state() const { return {}; }
};

struct BuildRequest {
  Workload workload;
  Pass pass;
  uint64_t seed;
  c10::Device device;
  /// Values of the parameters; null: drawn from the seed.
  const Weights* weights = nullptr;
  /// Type that `weights` are rounded to before they are converted to the parameters' type: so a
  /// float64 reference computes with the values that a narrower case has.
  std::optional<c10::ScalarType> weights_type = std::nullopt;
  /// Of the ranks that share the model's layers; null: none. They outlive the work.
  ModelHooks* hooks = nullptr;
};

struct Component {
  std::string name;
  std::vector<Pass> passes;
  std::function<Cost(const Workload&, Pass)> cost;
  /// Inputs, and weights unless they are given, depend on the seed alone, not on dtype or variant,
  /// so that a float64 build serves as reference.
  std::function<std::unique_ptr<WorkItem>(const BuildRequest&)> build;
  /// Why the component cannot run this pass of this workload; empty text, or no function, where it
  /// can.
  std::function<std::string(const Workload&, Pass)> refusal = {};
  /// What it is made of; a variant that changes none of these makes no case.
  Parts parts = {};
  /// The same of a model of this shape: attention has norms where it norms q and k.
  Parts parts_in(const ModelConfig& config) const {
    return config.qk_norm() && parts.overlap(Part::attention) ? parts | Part::norm : parts;
  }
  /// What the default grid measures of it: these sizes at their own batch and sequence and, with
  /// in_default_grid, `tiny` over a grid of batch and sequence.
  std::vector<std::string> default_sizes = {"tiny"};
  bool in_default_grid = false;
  /// Why a model of this shape has no such component, which then makes no case unless it is named;
  /// empty text, or no function, where it has.
  std::function<std::string(const ModelConfig&)> missing_in = {};
};

struct Case {
  const Component* component;  ///< outlives every case
  Pass pass;
  std::string size;  ///< name of the problem size, or "custom"
  Workload workload;
  /// Why it is not to be run (a switch that the component lacks, ...); empty for a case to run.
  std::string skip_reason;

  /// <component>/<pass>/<variant>/<size>/<dtype>/batch:<B>/seq:<S>
  std::string name() const;
  /// The same of the baseline: all variants of a point have it.
  std::string point() const;
  Cost cost() const { return component->cost(workload, pass); }
  /// Whether it would need more bytes than any device has: then it is not even run on meta.
  bool is_beyond_any_device() const;
  /// Predicted at the first call, which takes milliseconds, and cached: after a change of the case,
  /// reset known_memory.
  /// Where the variant has operators without a Meta kernel (Variant::runs_on_meta), it is that of
  /// the model's own operations.
  const PredictedMemory& memory() const;

  mutable std::optional<PredictedMemory> known_memory = std::nullopt;
};

/// A layer with its inputs, ready to be called.
struct Layer {
  /// Inputs whose gradients the backward computes; they must require gradients.
  NamedTensors inputs;
  NamedTensors parameters;
  /// Computes the outputs, each with its name; keeps alive whatever it needs.
  std::function<NamedTensors()> forward;
  /// The gradient of each output that the backward starts from; empty where the output is a loss.
  std::vector<at::Tensor> output_gradients;
  TokenInputs tokens = {};
};

class LayerWork final : public WorkItem {
 public:
  /// `pass`: forward, backward (its forward runs in prepare()), forward_backward; forward_loss
  /// counts as a forward.
  LayerWork(Layer layer, Pass pass, Dtype dtype, c10::DeviceType device);

  void prepare() override;
  void run() override;
  bool runs_in_a_row() const override;
  NamedTensors results() const override;
  NamedTensors parameters() const override { return layer_.parameters; }
  NamedTensors givens() const override;
  void change_inputs(uint64_t seed, int64_t distinct) override;
  std::vector<std::string> without_gradient() const override;

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

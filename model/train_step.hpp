// One optimisation step: forward, loss, backward, update; each part can be called alone, and on a
// GPU the whole be captured once and replayed.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "model/adamw.hpp"
#include "model/cost.hpp"
#include "model/tiny_llama.hpp"

namespace tinyllama {

/// A batch of samples: tokens [B, S] int64 and their next_token_targets.
struct TokenBatch {
  at::Tensor tokens;
  at::Tensor targets;
};

/// B samples of S tokens drawn uniformly from the vocabulary, with their targets. Throws
/// std::invalid_argument when S < 2.
TokenBatch random_token_batch(const ModelConfig& config, int64_t batch, int64_t seq,
                              TensorInitializer& initializer);

/// Dynamic loss scaling for float16 matrix multiplications, whose small gradients would otherwise
/// flush to zero. The rule of torch.amp.GradScaler: grow the scale after a run of finite steps,
/// halve it and skip the update after one that is not.
class LossScaler {
 public:
  explicit LossScaler(c10::Device device);

  /// loss * scale.
  at::Tensor scale(const at::Tensor& loss) const;
  /// Divides the gradients by the scale, lets the optimizer step if all of them are finite, and
  /// adapts the scale. Returns whether the optimizer stepped.
  bool unscale_and_step(AdamW& optimizer);
  double current_scale() const;
  /// Back to the initial scale and count, in place.
  void begin_anew();

 private:
  at::Tensor scale_;           // float32 scalar
  at::Tensor growth_tracker_;  // int32 scalar: finite steps since the scale last changed
};

/// Empty, or what is wrong after a backward through all of a model: how many of these parameters
/// have no gradient, the first of them, and why. An operator that autograd does not see leaves work
/// out, and the update would pass over such parameters in silence.
std::string lacks_gradients(const NamedTensors& parameters);

class TrainStep {
 public:
  /// Holds references: model and optimizer must outlive it. With amp_f16 it has a LossScaler. Where
  /// something else updates the parameters, `optimizer` is one without parameters.
  TrainStep(const TinyLlama& model, AdamW& optimizer);

  /// Loss of one batch divided by `accumulation_steps`, with its graph.
  at::Tensor forward(const TokenBatch& batch, int64_t accumulation_steps = 1) const;
  /// Adds the loss's gradients to the parameters'.
  void backward(const at::Tensor& loss) const;
  /// Updates the parameters. Returns false when loss scaling met a gradient that is not finite and
  /// skipped the update.
  bool update();

  /// Sets the loss scale, where there is one, back to that of the first step.
  void reset_scale();

  /// A whole step over one or more micro-batches, whose gradients add up to those of one batch of
  /// all their samples (micro-batches of equal size). Gradients must be clear. Returns the mean
  /// loss, detached.
  at::Tensor run(std::span<const TokenBatch> micro_batches);

 private:
  const TinyLlama& model_;
  AdamW& optimizer_;
  std::optional<LossScaler> scaler_;
  c10::DeviceType device_type_;
};

/// A whole training step, captured once on a GPU and replayed: one launch instead of one a kernel.
class StepGraph {
 public:
  /// Captures TrainStep::run on `batch`; further batches have to be copied into its tensors. Runs
  /// some steps first, to warm libraries up, and restores parameters, moments and the count of
  /// steps afterwards. The optimizer's variant must have Switch::graph. Throws c10::Error where the
  /// device cannot capture, or the step does what cannot be captured.
  StepGraph(TrainStep& step, AdamW& optimizer, const TokenBatch& batch);

  /// Enqueues the step. It overwrites gradients and loss of the last step in place: gradients must
  /// not be cleared in between. Returns the loss, [].
  const at::Tensor& run();

 private:
  AdamW& optimizer_;
  TokenBatch batch_;
  at::Tensor loss_;
  std::function<void()> replay_;
};

/// model forward_backward of each micro-batch, and one update.
Cost full_step_cost(const Workload& workload, int64_t micro_batches = 1);

}  // namespace tinyllama

// One optimisation step: forward, loss, backward, update; each part can be called alone.
#pragma once

#include <optional>
#include <span>

#include "model/adamw.hpp"
#include "model/loss_scaler.hpp"
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

class TrainStep {
 public:
  /// Holds references: model and optimizer must outlive it. amp_f16 gets a LossScaler. Who updates
  /// the parameters in another way gives an optimizer of none.
  TrainStep(const TinyLlama& model, AdamW& optimizer);

  /// Loss of one batch divided by `accumulation_steps`, with its graph.
  at::Tensor forward(const TokenBatch& batch, int64_t accumulation_steps = 1) const;
  /// Adds the loss's gradients to the parameters'.
  void backward(const at::Tensor& loss) const;
  /// Updates the parameters. Returns false when loss scaling met a gradient that is not finite and
  /// skipped the update.
  bool update();

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

}  // namespace tinyllama

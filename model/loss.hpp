// Next-token cross-entropy, and the LM head that it needs.
#pragma once

#include <optional>

#include "model/config.hpp"
#include "model/cost.hpp"
#include "model/linear.hpp"

namespace tinyllama {

/// Target of the last position of a sequence, which has no next token.
inline constexpr int64_t kIgnoredTarget = -100;

/// tokens [B, S] -> targets [B, S]: each position's next token, kIgnoredTarget at the last. This is
/// the one shift there is; the LM head runs over all S positions, the loss over S - 1. Throws
/// std::invalid_argument when S < 2, where no token has a next one.
at::Tensor next_token_targets(const at::Tensor& tokens);

/// logits [B, S, V], targets [B, S] -> mean cross-entropy in float32 (float64 for float64 logits)
/// over the targets not ignored.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets);

/// Projection to the vocabulary.
class LmHead {
 public:
  /// With a weight of its own, also of a model with tied embeddings where it stands alone.
  LmHead(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer);
  /// Tied: `weight` [V, D] is the embedding's. Switch::layout does not move it.
  LmHead(const at::Tensor& weight, const ModelConfig& config, const Variant& variant);

  /// hidden_states [B, S, D] -> logits [B, S, V].
  at::Tensor forward(const at::Tensor& hidden_states) const;
  /// hidden_states [B, S, D], targets [B, S] -> next_token_loss of the logits. Of one rank's share
  /// of the vocabulary: over the rank's logits, each target taken modulo their number, since what
  /// other ranks contribute is not computed here.
  at::Tensor loss(const at::Tensor& hidden_states, const at::Tensor& targets) const;
  NamedTensors parameters(const std::string& prefix) const;

 private:
  LmHead(Linear projection, const ModelConfig& config, const Variant& variant);

  Linear projection_;  // [V, D]
  bool is_share_;
  Gemm gemm_;
  bool fused_loss_;
  std::optional<SlotOperator> operator_;  // of projection and loss together
};

/// LM head and cross-entropy together, by chunks of tokens: logits exist for one chunk at a time,
/// and in no wider type than the matrix multiplication gives (the idea of Liger Kernel's fused
/// linear cross-entropy, Hsu et al., 2024, arXiv:2410.10989). hidden_states [B, S, D], weight [V,
/// D], targets [B, S] int64 -> mean cross-entropy over the targets that are not kIgnoredTarget, in
/// at least float32. Where gradients are recorded, the forward computes them as well, while a
/// chunk's logits are at hand; the backward only scales.
at::Tensor fused_loss(const at::Tensor& hidden_states, const at::Tensor& weight,
                      const at::Tensor& targets, const Gemm& gemm);

/// Tokens of a chunk: on a CPU enough for efficient gemm, few enough that their logits stay in a
/// cache; on a GPU enough to fill it.
int64_t fused_loss_chunk(int64_t tokens, int64_t vocab_size, c10::DeviceType device);

/// LM head and cross-entropy.
Cost loss_cost(const Workload& workload, Pass pass);

}  // namespace tinyllama

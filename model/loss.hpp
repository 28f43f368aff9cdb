// Next-token cross-entropy, and the LM head that it needs.
#pragma once

#include "model/config.hpp"
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

/// Projection to the vocabulary, its weight not tied to the embedding's.
class LmHead {
 public:
  LmHead(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer);

  /// hidden_states [B, S, D] -> logits [B, S, V].
  at::Tensor forward(const at::Tensor& hidden_states) const;
  /// hidden_states [B, S, D], targets [B, S] -> next_token_loss of the logits.
  at::Tensor loss(const at::Tensor& hidden_states, const at::Tensor& targets) const;
  NamedTensors parameters(const std::string& prefix) const;

 private:
  Linear projection_;  // [V, D]
  Products products_;
  bool fused_loss_;
};

}  // namespace tinyllama

// Grouped-query attention with rotary embedding and a causal mask.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "model/cost.hpp"
#include "model/linear.hpp"
#include "model/rms_norm.hpp"
#include "model/rotary.hpp"
#include "model/variant.hpp"

namespace tinyllama {

class Attention {
 public:
  Attention(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer);

  /// hidden_states [B, S, D], mask from attention_mask(S) -> [B, S, D].
  at::Tensor forward(const at::Tensor& hidden_states, const RotaryTable& rotary,
                     const at::Tensor& mask) const;
  NamedTensors parameters(const std::string& prefix) const;

 private:
  /// q [B, S, H, head_dim], k and v [B, S, KV, head_dim] of hidden states, normed where the model
  /// does so, not yet rotated.
  std::vector<at::Tensor> project(const at::Tensor& hidden_states) const;

  ModelConfig config_;
  Variant variant_;
  Linear qkv_;                     // Q [H x head_dim, D], K and V [KV x head_dim, D]
  Linear o_proj_;                  // [D, H x head_dim]
  std::optional<RmsNorm> q_norm_;  // of rows of head_dim
  std::optional<RmsNorm> k_norm_;
};

/// What is added to the scores: 0 where a query may look, -inf at later positions and at those
/// before the sliding window. Where scores are kept in memory, of one KV head: [groups x S, S], the
/// S x S mask once for each query head that shares it. For the library's attention with a window
/// [S, S]. Undefined where the variant's attention needs no mask in memory.
at::Tensor attention_mask(const ModelConfig& config, const Variant& variant, int64_t seq,
                          Dtype dtype, c10::Device device);

// The part of attention without weights, from rotated queries, keys and values to the context. Each
// takes q [B, S, H, head_dim], k and v [B, S, KV, head_dim] with any strides but 1 in the last
// dimension, and gives the context [B, S,
// H x head_dim]. Query heads share KV heads in groups of H / KV: head
// h uses KV head h / (H / KV). The context is as wide as the query heads together.

/// Whether the variant's attention keeps its scores in memory, and needs a mask for them.
bool has_score_matrix(const Variant& variant);

/// softmax(q k^T / sqrt(head_dim) + mask) v with the scores in memory; the baseline. `mask`: see
/// attention_mask(). `owns_q`: q may be overwritten.
at::Tensor materialized_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& mask,
                                  bool owns_q = true);

/// The library's scaled_dot_product_attention, with `mask`, causal where that is undefined.
at::Tensor library_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& mask);

/// Whether the library would multiply out all scores for a plain causal attention in this type,
/// although it may do otherwise: it has no other kernels for the device (Radeon cards), or for the
/// type (bfloat16 on a Turing card).
bool library_attention_is_math(c10::Device device, c10::ScalarType type);

/// Our own kernel (kernels/kernels.hpp), causal, with a window of so many positions.
at::Tensor fused_attention(at::Tensor q, at::Tensor k, at::Tensor v, int64_t window);

/// A user's operator in the slot causal_attention, which knows no window.
at::Tensor operator_attention(const SlotOperator& op, at::Tensor q, at::Tensor k, at::Tensor v);

/// Projections, rotary embedding, scores, softmax, values.
Cost attention_cost(const Workload& workload, Pass pass);

}  // namespace tinyllama

// Grouped-query attention with rotary embedding and a causal mask.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/cost.hpp"
#include "model/linear.hpp"
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
  /// q [B, S, H, head_dim], k and v [B, S, KV, head_dim] of hidden states, not yet rotated.
  std::vector<at::Tensor> project(const at::Tensor& hidden_states) const;

  ModelConfig config_;
  Variant variant_;
  Linear qkv_;     // Q [D, D], K and V [KV x head_dim, D]
  Linear o_proj_;  // [D, D]
};

/// What is added to the scores of one KV head: 0 where a query may look, -inf at later positions;
/// [groups x S, S], the S x S mask once for each query head that shares the KV head. Undefined
/// where the variant's attention needs no mask in memory.
at::Tensor attention_mask(const ModelConfig& config, const Variant& variant, int64_t seq,
                          Dtype dtype, c10::Device device);

// The part of attention without weights, from rotated queries, keys and values to the context. Each
// takes q [B, S, H, head_dim], k and v [B, S, KV, head_dim] with any strides but 1 in the last
// dimension, and gives the context [B, S, D]. Query heads share KV heads in groups of H / KV: head
// h uses KV head h / (H / KV).

/// Whether the variant's attention keeps its scores in memory, and needs a mask for them.
bool has_score_matrix(const Variant& variant);

/// softmax(q k^T / sqrt(head_dim) + mask) v with the scores in memory; the baseline. `mask`: see
/// attention_mask(). `owns_q`: q may be overwritten.
at::Tensor materialized_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& mask,
                                  bool owns_q = true);

/// The library's scaled_dot_product_attention, causal; `mask` is not used.
at::Tensor library_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& mask);

/// Our own kernel (kernels/kernels.hpp), causal; `mask` is not used.
at::Tensor fused_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& mask);

/// A user's operator in the slot causal_attention; `mask` is not used.
at::Tensor operator_attention(const SlotOperator& op, at::Tensor q, at::Tensor k, at::Tensor v);

/// Projections, rotary embedding, scores, softmax, values.
Cost attention_cost(const Workload& workload, Pass pass);

}  // namespace tinyllama

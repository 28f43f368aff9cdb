// From rotated queries, keys and values to the context: the part of attention without weights.
//
// Each takes q [B, S, H, head_dim], k and v [B, S, KV, head_dim] with any strides but 1 in the last
// dimension, and gives the context [B, S, D]. Query heads share KV heads in groups of H / KV: head
// h uses KV head h / (H / KV).
#pragma once

#include <ATen/core/Tensor.h>

#include "model/variant.hpp"

namespace tinyllama {

/// Whether the variant's attention keeps its scores in memory, and needs a mask for them.
bool has_score_matrix(const Variant& variant);

/// softmax(q k^T / sqrt(head_dim) + mask) v with the scores in memory; the baseline. `mask`: see
/// attention_mask().
at::Tensor materialized_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& mask);

/// The library's scaled_dot_product_attention, causal; `mask` is not used.
at::Tensor library_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& mask);

/// Our own kernel (kernels/attention.hpp), causal; `mask` is not used.
at::Tensor fused_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& mask);

}  // namespace tinyllama

// Causal grouped-query attention without a score matrix.
#pragma once

#include <ATen/core/Tensor.h>

namespace tinyllama::kernels {

/// q [B, S, H, head_dim], k and v [B, S, KV, head_dim], H a multiple of KV, of one type and with
/// any strides but 1 in the last dimension -> softmax(scale q k^T, causal) v, contiguous [B, S, H,
/// head_dim]. Scores live in tiles only: memory grows linearly with S. Saves q, k, v, the result
/// and one log-sum-exp a row; the backward computes the scores again. Narrow types are computed in
/// float32 and rounded once. Throws c10::ValueError for other shapes.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            double scale);

/// Scores that the kernel computes for one head: those of each tile of queries, up to the last key
/// that any of them sees.
int64_t causal_attention_scores(int64_t seq);

}  // namespace tinyllama::kernels

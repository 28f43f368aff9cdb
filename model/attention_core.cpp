#include "model/attention_core.hpp"

#include <ATen/ops/bmm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include <cmath>

#include "model/dtype.hpp"
#include "model/kernels/attention.hpp"
#include "model/meta_device.hpp"

namespace tinyllama {
namespace {

double score_scale(const at::Tensor& q) {
  return 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

}  // namespace

bool has_score_matrix(const Variant& variant) {
  return !variant.has(Switch::sdpa) && !variant.has(Switch::fused_attention);
}

// G = query heads a KV head; head h uses KV head h / G, so the heads of one KV head lie side by
// side and their queries can be stacked to [G x S, head_dim]: K and V are multiplied as they are,
// never copied G times.
at::Tensor materialized_attention(at::Tensor q, at::Tensor k, at::Tensor v,
                                  const at::Tensor& mask) {
  const int64_t batch = q.size(0);
  const int64_t seq = q.size(1);
  const int64_t heads = q.size(2);
  const int64_t kv_heads = k.size(2);
  const int64_t head_dim = q.size(3);

  // Scaling q instead of the scores touches S / head_dim times fewer elements.
  q = q.mul_(score_scale(q))
          .transpose(1, 2)
          .reshape({batch * kv_heads, -1, head_dim});                      // [B KV, G S, hd]
  k = k.permute({0, 2, 3, 1}).reshape({batch * kv_heads, head_dim, seq});  // [B KV, hd, S]
  v = v.transpose(1, 2).reshape({batch * kv_heads, seq, head_dim});        // [B KV, S, hd]

  at::Tensor scores = at::bmm(q, k).add_(mask);  // [B KV, G S, S]
  const auto wide_type = at_least_float(scores.scalar_type());
  scores = at::softmax(scores, -1, wide_type).to(v.scalar_type());

  return at::bmm(scores, v)  // [B KV, G S, hd]
      .view({batch, heads, seq, head_dim})
      .transpose(1, 2)
      .reshape({batch, seq, heads * head_dim});
}

at::Tensor library_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& /*mask*/) {
  const int64_t batch = q.size(0);
  const int64_t seq = q.size(1);
  const bool grouped = q.size(2) != k.size(2);
  if (q.is_meta()) {
    return meta_causal_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                 score_scale(q))
        .transpose(1, 2)
        .reshape({batch, seq, -1});
  }
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true,
                                          score_scale(q), /*enable_gqa=*/grouped)
      .transpose(1, 2)
      .reshape({batch, seq, -1});
}

at::Tensor fused_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& /*mask*/) {
  const int64_t batch = q.size(0);
  const int64_t seq = q.size(1);
  return kernels::causal_attention(q, k, v, score_scale(q)).view({batch, seq, -1});
}

}  // namespace tinyllama

#include "model/attention.hpp"

#include <ATen/ops/bmm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>

#include <cmath>
#include <limits>

namespace tinyllama {

Attention::Attention(const ModelConfig& config, const Variant& /*variant*/,
                     TensorInitializer& initializer)
    : config_(config),
      q_proj_(initializer.normal_parameter({config.hidden_dim(), config.hidden_dim()})),
      k_proj_(initializer.normal_parameter({config.kv_dim(), config.hidden_dim()})),
      v_proj_(initializer.normal_parameter({config.kv_dim(), config.hidden_dim()})),
      o_proj_(initializer.normal_parameter({config.hidden_dim(), config.hidden_dim()})) {}

// G = query heads a KV head; head h uses KV head h / G, so the heads of one KV head lie side by
// side and their queries can be stacked to [G x S, head_dim]: K and V are multiplied as they are,
// never copied G times.
at::Tensor Attention::forward(const at::Tensor& hidden_states, const RotaryTable& rotary,
                              const at::Tensor& mask) const {
  const int64_t batch = hidden_states.size(0);
  const int64_t seq = hidden_states.size(1);
  const int64_t kv_heads = config_.n_kv_heads();
  const int64_t head_dim = config_.head_dim();
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  const auto split_heads = [&](const at::Tensor& x, int64_t heads) {
    return x.view({batch, seq, heads, head_dim});
  };

  at::Tensor q = rotary.rotate(split_heads(at::linear(hidden_states, q_proj_), config_.n_heads()));
  at::Tensor k = rotary.rotate(split_heads(at::linear(hidden_states, k_proj_), kv_heads));
  at::Tensor v = split_heads(at::linear(hidden_states, v_proj_), kv_heads);

  // Scaling q instead of the scores touches S / head_dim times fewer elements.
  q = q.mul_(scale).transpose(1, 2).reshape({batch * kv_heads, -1, head_dim});  // [B KV, G S, hd]
  k = k.permute({0, 2, 3, 1}).reshape({batch * kv_heads, head_dim, seq});       // [B KV, hd, S]
  v = v.transpose(1, 2).reshape({batch * kv_heads, seq, head_dim});             // [B KV, S, hd]

  at::Tensor scores = at::bmm(q, k).add_(mask);  // [B KV, G S, S]
  const auto wide_type = c10::promoteTypes(scores.scalar_type(), c10::ScalarType::Float);
  scores = at::softmax(scores, -1, wide_type).to(v.scalar_type());

  const at::Tensor context = at::bmm(scores, v)  // [B KV, G S, hd]
                                 .view({batch, config_.n_heads(), seq, head_dim})
                                 .transpose(1, 2)
                                 .reshape({batch, seq, config_.hidden_dim()});
  return at::linear(context, o_proj_);
}

NamedTensors Attention::parameters(const std::string& prefix) const {
  return {{prefix + "q_proj.weight", q_proj_},
          {prefix + "k_proj.weight", k_proj_},
          {prefix + "v_proj.weight", v_proj_},
          {prefix + "o_proj.weight", o_proj_}};
}

at::Tensor causal_mask(const ModelConfig& config, int64_t seq, Dtype dtype, c10::Device device) {
  const auto options = at::TensorOptions().dtype(compute_type(dtype)).device(device);
  const at::Tensor mask =
      at::full({seq, seq}, -std::numeric_limits<double>::infinity(), options).triu(1);
  return mask.repeat({config.n_groups(), 1});
}

}  // namespace tinyllama

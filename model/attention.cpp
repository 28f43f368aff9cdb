#include "model/attention.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/triu.h>

#include <limits>

#include "model/attention_core.hpp"

namespace tinyllama {
namespace {

std::vector<Linear> make_qkv(const ModelConfig& config, const Variant& variant,
                             TensorInitializer& initializer) {
  const int64_t D = config.hidden_dim();
  const int64_t Kd = config.kv_dim();
  std::vector<Linear> projections;
  if (variant.has(Switch::qkv)) {
    projections.emplace_back(D, at::IntArrayRef({D, Kd, Kd}), variant, initializer);
  } else {
    for (const int64_t out : {D, Kd, Kd}) {
      projections.emplace_back(D, at::IntArrayRef({out}), variant, initializer);
    }
  }
  return projections;
}

}  // namespace

Attention::Attention(const ModelConfig& config, const Variant& variant,
                     TensorInitializer& initializer)
    : config_(config),
      variant_(variant),
      qkv_(make_qkv(config, variant, initializer)),
      o_proj_(config.hidden_dim(), {config.hidden_dim()}, variant, initializer) {}

std::vector<at::Tensor> Attention::project(const at::Tensor& hidden_states) const {
  const auto split_heads = [&](const at::Tensor& x) {
    return x.view({x.size(0), x.size(1), -1, config_.head_dim()});
  };
  std::vector<at::Tensor> heads;
  if (qkv_.size() == 1) {
    for (const at::Tensor& part : qkv_.front().forward_parts(hidden_states))
      heads.push_back(split_heads(part));
  } else {
    for (const Linear& projection : qkv_)
      heads.push_back(split_heads(projection.forward(hidden_states)));
  }
  return heads;
}

at::Tensor Attention::forward(const at::Tensor& hidden_states, const RotaryTable& rotary,
                              const at::Tensor& mask) const {
  auto heads = project(hidden_states);
  at::Tensor q = rotary.rotate(heads[0]);
  at::Tensor k = rotary.rotate(heads[1]);
  at::Tensor v = std::move(heads[2]);
  heads.clear();
  const auto core = variant_.has(Switch::fused_attention) ? fused_attention
                    : variant_.has(Switch::sdpa)          ? library_attention
                                                          : materialized_attention;
  return o_proj_.forward(core(std::move(q), std::move(k), std::move(v), mask));
}

NamedTensors Attention::parameters(const std::string& prefix) const {
  const bool merged = qkv_.size() == 1;
  const auto part = [&](size_t i) { return merged ? qkv_[0].weight(i) : qkv_[i].weight(); };
  return {{prefix + "q_proj.weight", part(0)},
          {prefix + "k_proj.weight", part(1)},
          {prefix + "v_proj.weight", part(2)},
          {prefix + "o_proj.weight", o_proj_.weight()}};
}

at::Tensor attention_mask(const ModelConfig& config, const Variant& variant, int64_t seq,
                          Dtype dtype, c10::Device device) {
  if (variant.has(Switch::sdpa) || variant.has(Switch::fused_attention)) return {};
  const auto options = at::TensorOptions().dtype(compute_type(dtype)).device(device);
  const at::Tensor mask =
      at::full({seq, seq}, -std::numeric_limits<double>::infinity(), options).triu(1);
  return mask.repeat({config.n_groups(), 1});
}

}  // namespace tinyllama

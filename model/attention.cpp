#include "model/attention.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/triu.h>

#include <limits>

#include "model/attention_core.hpp"
#include "model/component_range.hpp"

namespace tinyllama {
Attention::Attention(const ModelConfig& config, const Variant& variant,
                     TensorInitializer& initializer)
    : config_(config),
      variant_(variant),
      qkv_(config.hidden_dim(), {config.hidden_dim(), config.kv_dim(), config.kv_dim()},
           variant.has(Switch::qkv), variant, initializer),
      o_proj_(config.hidden_dim(), config.hidden_dim(), variant, initializer) {}

std::vector<at::Tensor> Attention::project(const at::Tensor& hidden_states) const {
  const ComponentRange range("attention/qkv_proj");
  std::vector<at::Tensor> heads = qkv_.forward_parts(hidden_states);
  for (at::Tensor& x : heads) x = x.view({x.size(0), x.size(1), -1, config_.head_dim()});
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
  const at::Tensor attended = [&] {
    const ComponentRange range("attention/core");
    return core(std::move(q), std::move(k), std::move(v), mask);
  }();
  const ComponentRange range("attention/o_proj");
  return o_proj_.forward(attended);
}

NamedTensors Attention::parameters(const std::string& prefix) const {
  return {{prefix + "q_proj.weight", qkv_.weight(0)},
          {prefix + "k_proj.weight", qkv_.weight(1)},
          {prefix + "v_proj.weight", qkv_.weight(2)},
          {prefix + "o_proj.weight", o_proj_.weight()}};
}

at::Tensor attention_mask(const ModelConfig& config, const Variant& variant, int64_t seq,
                          Dtype dtype, c10::Device device) {
  if (!has_score_matrix(variant)) return {};
  const auto options = at::TensorOptions().dtype(compute_type(dtype)).device(device);
  const at::Tensor mask =
      at::full({seq, seq}, -std::numeric_limits<double>::infinity(), options).triu(1);
  return mask.repeat({config.n_groups(), 1});
}

}  // namespace tinyllama

#include "model/feed_forward.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/silu.h>

#include "model/component_range.hpp"
#include "model/kernels/swiglu.hpp"

namespace tinyllama {
FeedForward::FeedForward(const ModelConfig& config, const Variant& variant,
                         TensorInitializer& initializer)
    : merged_(variant.has(Switch::gate_up)),
      fused_swiglu_(variant.has(Switch::fused_swiglu)),
      gate_up_(config.hidden_dim(), {config.intermediate_dim(), config.intermediate_dim()}, merged_,
               variant, initializer),
      down_(config.intermediate_dim(), config.hidden_dim(), variant, initializer) {}

// silu(gate) * up, [B, S, D_ff]
at::Tensor FeedForward::activation(const at::Tensor& hidden_states) const {
  const bool in_one = merged_ && fused_swiglu_;
  const std::vector<at::Tensor> parts = [&] {
    const ComponentRange range("ffn/gate_up_proj");
    return in_one ? std::vector<at::Tensor>{gate_up_.forward(hidden_states)}
                  : gate_up_.forward_parts(hidden_states);
  }();
  const ComponentRange range("ffn/swiglu");
  if (in_one) return kernels::swiglu_merged(parts[0]);
  return fused_swiglu_ ? kernels::swiglu(parts[0], parts[1]) : at::silu(parts[0]) * parts[1];
}

at::Tensor FeedForward::forward(const at::Tensor& hidden_states) const {
  const at::Tensor active = activation(hidden_states);
  const ComponentRange range("ffn/down_proj");
  return down_.forward(active);
}

NamedTensors FeedForward::parameters(const std::string& prefix) const {
  return {{prefix + "gate_proj.weight", gate_up_.weight(0)},
          {prefix + "up_proj.weight", gate_up_.weight(1)},
          {prefix + "down_proj.weight", down_.weight()}};
}

}  // namespace tinyllama

#include "model/feed_forward.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/silu.h>

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
  if (merged_ && fused_swiglu_) return kernels::swiglu_merged(gate_up_.forward(hidden_states));
  const auto parts = gate_up_.forward_parts(hidden_states);
  return fused_swiglu_ ? kernels::swiglu(parts[0], parts[1]) : at::silu(parts[0]) * parts[1];
}

at::Tensor FeedForward::forward(const at::Tensor& hidden_states) const {
  return down_.forward(activation(hidden_states));
}

NamedTensors FeedForward::parameters(const std::string& prefix) const {
  return {{prefix + "gate_proj.weight", gate_up_.weight(0)},
          {prefix + "up_proj.weight", gate_up_.weight(1)},
          {prefix + "down_proj.weight", down_.weight()}};
}

}  // namespace tinyllama

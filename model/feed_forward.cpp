#include "model/feed_forward.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>

namespace tinyllama {

FeedForward::FeedForward(const ModelConfig& config, const Variant& /*variant*/,
                         TensorInitializer& initializer)
    : gate_proj_(initializer.normal_parameter({config.intermediate_dim(), config.hidden_dim()})),
      up_proj_(initializer.normal_parameter({config.intermediate_dim(), config.hidden_dim()})),
      down_proj_(initializer.normal_parameter({config.hidden_dim(), config.intermediate_dim()})) {}

at::Tensor FeedForward::forward(const at::Tensor& hidden_states) const {
  const at::Tensor gate = at::linear(hidden_states, gate_proj_);  // [B, S, D_ff]
  const at::Tensor up = at::linear(hidden_states, up_proj_);      // [B, S, D_ff]
  return at::linear(at::silu(gate) * up, down_proj_);
}

NamedTensors FeedForward::parameters(const std::string& prefix) const {
  return {{prefix + "gate_proj.weight", gate_proj_},
          {prefix + "up_proj.weight", up_proj_},
          {prefix + "down_proj.weight", down_proj_}};
}

}  // namespace tinyllama

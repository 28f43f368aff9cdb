#include "model/feed_forward.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/silu.h>

#include "model/kernels/swiglu.hpp"

namespace tinyllama {
namespace {

std::vector<Linear> make_gate_up(const ModelConfig& config, const Variant& variant,
                                 TensorInitializer& initializer) {
  const int64_t D = config.hidden_dim();
  const int64_t F = config.intermediate_dim();
  std::vector<Linear> projections;
  if (variant.has(Switch::gate_up)) {
    projections.emplace_back(D, at::IntArrayRef({F, F}), variant, initializer);
  } else {
    projections.emplace_back(D, at::IntArrayRef({F}), variant, initializer);
    projections.emplace_back(D, at::IntArrayRef({F}), variant, initializer);
  }
  return projections;
}

}  // namespace

FeedForward::FeedForward(const ModelConfig& config, const Variant& variant,
                         TensorInitializer& initializer)
    : fused_swiglu_(variant.has(Switch::fused_swiglu)),
      gate_up_(make_gate_up(config, variant, initializer)),
      down_(config.intermediate_dim(), {config.hidden_dim()}, variant, initializer) {}

// silu(gate) * up, [B, S, D_ff]
at::Tensor FeedForward::activation(const at::Tensor& hidden_states) const {
  const bool merged = gate_up_.size() == 1;
  if (merged && fused_swiglu_) {
    return kernels::swiglu_merged(gate_up_.front().forward(hidden_states));
  }
  const auto parts = merged ? gate_up_.front().forward_parts(hidden_states)
                            : std::vector{gate_up_.front().forward(hidden_states),
                                          gate_up_.back().forward(hidden_states)};
  return fused_swiglu_ ? kernels::swiglu(parts[0], parts[1]) : at::silu(parts[0]) * parts[1];
}

at::Tensor FeedForward::forward(const at::Tensor& hidden_states) const {
  return down_.forward(activation(hidden_states));
}

NamedTensors FeedForward::parameters(const std::string& prefix) const {
  const bool merged = gate_up_.size() == 1;
  return {{prefix + "gate_proj.weight", gate_up_.front().weight()},
          {prefix + "up_proj.weight", merged ? gate_up_[0].weight(1) : gate_up_[1].weight()},
          {prefix + "down_proj.weight", down_.weight()}};
}

}  // namespace tinyllama

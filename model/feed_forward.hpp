// SwiGLU feed-forward network: down(silu(gate(x)) * up(x)).
#pragma once

#include <optional>

#include "model/config.hpp"
#include "model/cost.hpp"
#include "model/linear.hpp"

namespace tinyllama {

class FeedForward {
 public:
  FeedForward(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer);

  /// hidden_states [B, S, D] -> [B, S, D].
  at::Tensor forward(const at::Tensor& hidden_states) const;
  NamedTensors parameters(const std::string& prefix) const;

 private:
  at::Tensor activation(const at::Tensor& hidden_states) const;

  bool merged_;
  bool fused_swiglu_;
  std::optional<SlotOperator> swiglu_operator_;
  Linear gate_up_;  // gate and up, [D_ff, D] each
  Linear down_;     // [D, D_ff]
};

/// Three projections and the activation.
Cost feed_forward_cost(const Workload& workload, Pass pass);

}  // namespace tinyllama

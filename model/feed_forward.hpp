// SwiGLU feed-forward network: down(silu(gate(x)) * up(x)).
#pragma once

#include "model/config.hpp"
#include "model/parameters.hpp"
#include "model/variant.hpp"

namespace tinyllama {

class FeedForward {
 public:
  FeedForward(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer);

  /// hidden_states [B, S, D] -> [B, S, D].
  at::Tensor forward(const at::Tensor& hidden_states) const;
  NamedTensors parameters(const std::string& prefix) const;

 private:
  at::Tensor gate_proj_;  // [D_ff, D]
  at::Tensor up_proj_;    // [D_ff, D]
  at::Tensor down_proj_;  // [D, D_ff]
};

}  // namespace tinyllama

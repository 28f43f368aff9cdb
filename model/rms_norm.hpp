// Root mean square normalisation with a learned scale.
#pragma once

#include "model/config.hpp"
#include "model/parameters.hpp"

namespace tinyllama {

class RmsNorm {
 public:
  RmsNorm(const ModelConfig& config, TensorInitializer& initializer);

  /// hidden_states [B, S, D] -> weight * x / sqrt(mean(x^2) + eps), same shape and type. Types
  /// narrower than float32 are normalised in float32 and rounded before the scale, as LlamaRMSNorm
  /// does.
  at::Tensor forward(const at::Tensor& hidden_states) const;
  NamedTensors parameters(const std::string& prefix) const;

 private:
  at::Tensor weight_;  // [D]
  double eps_;
};

}  // namespace tinyllama

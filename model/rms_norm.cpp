#include "model/rms_norm.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>

namespace tinyllama {

RmsNorm::RmsNorm(const ModelConfig& config, TensorInitializer& initializer)
    : weight_(initializer.ones_parameter({config.hidden_dim()})), eps_(config.norm_eps()) {}

at::Tensor RmsNorm::forward(const at::Tensor& hidden_states) const {
  const auto input_type = hidden_states.scalar_type();
  const auto wide_type = c10::promoteTypes(input_type, c10::ScalarType::Float);
  const at::Tensor x = hidden_states.to(wide_type);
  const at::Tensor mean_square = x.pow(2).mean(-1, /*keepdim=*/true);
  const at::Tensor normalized = x * at::rsqrt(mean_square + eps_);
  return weight_ * normalized.to(input_type);
}

NamedTensors RmsNorm::parameters(const std::string& prefix) const {
  return {{prefix + "weight", weight_}};
}

}  // namespace tinyllama

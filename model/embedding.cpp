#include "model/embedding.hpp"

#include <ATen/ops/embedding.h>

#include "model/component_range.hpp"

namespace tinyllama {

Embedding::Embedding(const ModelConfig& config, TensorInitializer& initializer)
    : weight_(initializer.normal_parameter({config.vocab_size(), config.hidden_dim()})) {}

at::Tensor Embedding::forward(const at::Tensor& tokens) const {
  const ComponentRange range("embedding");
  return at::embedding(weight_, tokens);
}

NamedTensors Embedding::parameters(const std::string& prefix) const {
  return {{prefix + "weight", weight_}};
}

}  // namespace tinyllama

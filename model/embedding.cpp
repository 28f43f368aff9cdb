#include "model/embedding.hpp"

#include <ATen/ops/embedding.h>

#include "model/component_range.hpp"
#include "model/slowdown.hpp"

namespace tinyllama {

Embedding::Embedding(const ModelConfig& config, TensorInitializer& initializer)
    : weight_(initializer.normal_parameter({config.vocab_size(), config.hidden_dim()})) {}

at::Tensor Embedding::forward(const at::Tensor& tokens) const {
  const ComponentRange range("embedding");
  const auto look_up = [this](const at::Tensor& some) { return at::embedding(weight_, some); };
  return slowed(Part::embedding, look_up, tokens);
}

NamedTensors Embedding::parameters(const std::string& prefix) const {
  return {{prefix + "weight", weight_}};
}

}  // namespace tinyllama

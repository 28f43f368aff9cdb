// Gradients of every layer against central differences in float64.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include "model/block.hpp"
#include "model/embedding.hpp"
#include "model/testing.hpp"
#include "model/tiny_llama.hpp"

namespace tinyllama {
namespace {

using testing::expect_gradients_by_differences;

constexpr int64_t B = 2, S = 3;

class Gradients : public ::testing::Test {
 protected:
  ModelConfig config = testing::small_config();
  TensorInitializer initializer{11, Dtype::f64, c10::kCPU};
  at::Tensor x = initializer.normal({B, S, config.hidden_dim()}).requires_grad_(true);
  RotaryTable rotary{config, Variant(), S, Dtype::f64, c10::kCPU};
  at::Tensor mask = attention_mask(config, Variant(), S, Dtype::f64, c10::kCPU);

  // A random projection to a scalar, so that no element's gradient cancels.
  void check(const std::function<at::Tensor()>& layer, NamedTensors leaves) {
    for (const auto& [name, leaf] : leaves) {
      if (name != "x") leaf.detach().copy_(initializer.normal(leaf.sizes(), 0.4));
    }
    const at::Tensor weights = initializer.normal(layer().sizes());
    expect_gradients_by_differences([&] { return (layer() * weights).sum(); }, leaves);
  }
  NamedTensors with_x(NamedTensors leaves) {
    leaves.emplace_back("x", x);
    return leaves;
  }
};

TEST_F(Gradients, Embedding) {
  const Embedding layer(config, initializer);
  const at::Tensor tokens = initializer.tokens({B, S}, config.vocab_size());
  check([&] { return layer.forward(tokens); }, layer.parameters(""));
}

TEST_F(Gradients, RmsNorm) {
  const RmsNorm layer(config, Variant(), initializer);
  check([&] { return layer.forward(x); }, with_x(layer.parameters("")));
}

TEST_F(Gradients, Rotary) {
  check(
      [&] {
        return rotary.rotate(x.view({B, S, config.n_heads(), config.head_dim()}));
      },
      with_x({}));
}

TEST_F(Gradients, Attention) {
  const Attention layer(config, Variant(), initializer);
  check([&] { return layer.forward(x, rotary, mask); }, with_x(layer.parameters("")));
}

TEST_F(Gradients, FeedForward) {
  const FeedForward layer(config, Variant(), initializer);
  check([&] { return layer.forward(x); }, with_x(layer.parameters("")));
}

TEST_F(Gradients, Block) {
  const Block block(config, Variant(), initializer);
  check([&] { return block.forward(x, rotary, mask); }, with_x(block.parameters("")));
}

TEST_F(Gradients, LossOfTheWholeModel) {
  const TinyLlama model(config, Variant(), S, initializer);
  const at::Tensor tokens = initializer.tokens({B, S}, config.vocab_size());
  const at::Tensor targets = next_token_targets(tokens);
  for (const auto& [name, parameter] : model.parameters())
    parameter.detach().copy_(initializer.normal(parameter.sizes(), 0.4));
  expect_gradients_by_differences([&] { return model.loss(tokens, targets); }, model.parameters());
}

}  // namespace
}  // namespace tinyllama

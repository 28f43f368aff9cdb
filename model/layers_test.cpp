// What the golden files, which hold logits, loss and gradients of the whole model, do not show of
// its layers.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <optional>

#include "model/embedding.hpp"
#include "model/loss.hpp"
#include "model/rms_norm.hpp"
#include "model/rotary.hpp"
#include "model/testing.hpp"
#include "model/tiny_llama.hpp"
#include "model/weights.hpp"

namespace tinyllama {
namespace {

constexpr int64_t B = 2, S = 5;

class Layers : public ::testing::Test {
 protected:
  ModelConfig config = testing::small_config();
  int64_t D = config.hidden_dim();
  TensorInitializer initializer{7, Dtype::f64, c10::kCPU};
  at::Tensor x = initializer.normal({B, S, D});
};

TEST_F(Layers, RmsNormOfNarrowTypesIsComputedInFloat32) {
  TensorInitializer narrow(7, Dtype::bf16, c10::kCPU);
  const RmsNorm layer(config.hidden_dim(), config.norm_eps(), Variant(), narrow);
  // 300^2 x 12 would overflow nothing in bfloat16, but 256 + 1 is 256 there: a sum of squares in
  // bfloat16 loses small terms.
  at::Tensor row = narrow.normal({1, 1, D}, 0.01);
  row.select(2, 0).fill_(300.0);
  const at::Tensor wide = row.to(c10::ScalarType::Double);
  const at::Tensor expected = wide * (wide.pow(2).mean() + config.norm_eps()).rsqrt();
  const at::Tensor y = layer.forward(row);
  EXPECT_EQ(y.scalar_type(), c10::ScalarType::BFloat16);
  EXPECT_TRUE(y.to(c10::ScalarType::Double).allclose(expected, /*rtol=*/0x1p-8, /*atol=*/0));
}

// As in LlamaForCausalLM, whose embedding has pad_token_id as its padding_idx.
TEST_F(Layers, ThePaddingTokensRowGetsNoGradient) {
  ModelDimensions dimensions = testing::small_config().dimensions();
  const at::Tensor tokens = at::arange(4).reshape({1, 4});
  for (const auto padding : {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    dimensions.padding_token = padding;
    const Embedding layer(ModelConfig(dimensions), initializer);
    layer.forward(tokens).sum().backward();
    const at::Tensor gradient = layer.parameters("").front().second.grad();
    for (const int64_t row : {0, 1, 2, 3})
      EXPECT_EQ(gradient[row].sum().item<double>(), row == padding ? 0 : D);
  }
}

TEST_F(Layers, LossNeedsANextToken) {
  EXPECT_THROW(next_token_targets(initializer.tokens({B, 1}, config.vocab_size())),
               std::invalid_argument);
}

TEST_F(Layers, FusedLossAddsUpGradientsInEitherOrderOfItsWeight) {
  const at::Tensor targets = next_token_targets(initializer.tokens({B, S}, config.vocab_size()));
  const auto gradient_of = [&](const Variant& variant) {
    TensorInitializer same(7, Dtype::f64, c10::kCPU);
    const LmHead head(config, variant, same);
    head.loss(x, targets).backward();
    return head.parameters("").front().second.grad();
  };
  const at::Tensor expected = gradient_of(Variant());
  for (const Variant& variant :
       {Variant({Switch::fused_loss}), Variant({Switch::fused_loss, Switch::layout}),
        Variant({Switch::fused_loss, Switch::tiled_gemm}),
        Variant({Switch::fused_loss, Switch::tiled_gemm, Switch::layout})}) {
    EXPECT_TRUE(gradient_of(variant).allclose(expected, 1e-12, 1e-15)) << variant.name();
  }
}

TEST(FusedLossChunk, StaysInACpusCacheAndFillsAGpu) {
  constexpr auto cpu = c10::DeviceType::CPU, gpu = c10::DeviceType::CUDA;
  EXPECT_EQ(fused_loss_chunk(100, 1000, cpu), 100);
  EXPECT_EQ(fused_loss_chunk(8192, 1000, cpu), 512);
  EXPECT_EQ(fused_loss_chunk(8192, 128256, cpu), 256);
  EXPECT_EQ(fused_loss_chunk(100, 1000, gpu), 100);
  EXPECT_EQ(fused_loss_chunk(8192, 1000, gpu), 8192);
  EXPECT_EQ(fused_loss_chunk(8192, 128256, gpu), 1024);
}

TEST(ParameterShapes, AreTheModelsInItsOrder) {
  const ModelConfig config = testing::small_config();
  TensorInitializer initializer(1, Dtype::f32, c10::kCPU);
  const NamedTensors parameters = TinyLlama(config, Variant(), 2, initializer).parameters();
  const auto shapes = parameter_shapes(config);
  ASSERT_EQ(shapes.size(), parameters.size());
  int64_t elements = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_EQ(shapes[i].name, parameters[i].first);
    EXPECT_EQ(parameters[i].second.sizes(), c10::IntArrayRef(shapes[i].shape)) << shapes[i].name;
    elements += parameters[i].second.numel();
  }
  EXPECT_EQ(elements, count_parameters(config));
}

}  // namespace
}  // namespace tinyllama

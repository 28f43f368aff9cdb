// Every layer against plain loops in float64, at small shapes, and gradients against differences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/attention.hpp"
#include "model/block.hpp"
#include "model/embedding.hpp"
#include "model/feed_forward.hpp"
#include "model/loss.hpp"
#include "model/rms_norm.hpp"
#include "model/rotary.hpp"
#include "model/testing.hpp"
#include "model/tiny_llama.hpp"
#include "model/weights.hpp"

namespace tinyllama {
namespace {

using testing::expect_near;
using testing::values;
using Values = std::vector<double>;

constexpr int64_t B = 2, S = 5;
constexpr double kExact = 1e-12;

class Layers : public ::testing::Test {
 protected:
  ModelConfig config = testing::small_config();
  int64_t D = config.hidden_dim();
  TensorInitializer initializer{7, Dtype::f64, c10::kCPU};
  // Weights far from 0.02, so that softmax and silu leave their linear range.
  at::Tensor x = initializer.normal({B, S, D});

  void enlarge(const NamedTensors& parameters) {
    for (const auto& [name, parameter] : parameters)
      parameter.detach().copy_(initializer.normal(parameter.sizes(), 0.5));
  }
};

// y[t, o] = sum_i x[t, i] w[o, i]
Values linear(const Values& x, const Values& w, int64_t in, int64_t out) {
  const int64_t rows = static_cast<int64_t>(x.size()) / in;
  Values y(static_cast<size_t>(rows * out));
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) y[t * out + o] += x[t * in + i] * w[o * in + i];
    }
  }
  return y;
}

Values rms_norm(const Values& x, const Values& weight, double eps) {
  const auto D = static_cast<int64_t>(weight.size());
  Values y(x.size());
  for (int64_t t = 0; t < static_cast<int64_t>(x.size()) / D; ++t) {
    double sum = 0;
    for (int64_t i = 0; i < D; ++i) sum += x[t * D + i] * x[t * D + i];
    const double factor = 1.0 / std::sqrt(sum / static_cast<double>(D) + eps);
    for (int64_t i = 0; i < D; ++i) y[t * D + i] = weight[i] * x[t * D + i] * factor;
  }
  return y;
}

// Rotates each pair (i, i + head_dim / 2) of every head by its angle; angles in float32, as the
// convention is.
Values rotate(const Values& x, int64_t heads, int64_t head_dim, double theta) {
  Values y = x;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t s = 0; s < S; ++s) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < head_dim / 2; ++i) {
          const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
          const double angle = static_cast<double>(s) * std::pow(theta, -exponent);
          const int64_t at = ((b * S + s) * heads + h) * head_dim + i;
          const double first = x[at], second = x[at + head_dim / 2];
          y[at] = first * std::cos(angle) - second * std::sin(angle);
          y[at + head_dim / 2] = second * std::cos(angle) + first * std::sin(angle);
        }
      }
    }
  }
  return y;
}

// Head h of H uses KV head h / (H / KV).
Values attend(const Values& q, const Values& k, const Values& v, int64_t H, int64_t KV,
              int64_t hd) {
  Values out(q.size());
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      const int64_t kv = h / (H / KV);
      for (int64_t s = 0; s < S; ++s) {
        Values score(static_cast<size_t>(s + 1));
        double total = 0;
        for (int64_t t = 0; t <= s; ++t) {
          double dot = 0;
          for (int64_t i = 0; i < hd; ++i)
            dot += q[((b * S + s) * H + h) * hd + i] * k[((b * S + t) * KV + kv) * hd + i];
          score[t] = std::exp(dot / std::sqrt(static_cast<double>(hd)));
          total += score[t];
        }
        for (int64_t t = 0; t <= s; ++t) {
          for (int64_t i = 0; i < hd; ++i) {
            out[((b * S + s) * H + h) * hd + i] +=
                score[t] / total * v[((b * S + t) * KV + kv) * hd + i];
          }
        }
      }
    }
  }
  return out;
}

Values attention(const ModelConfig& c, const Values& x, const NamedTensors& weights) {
  const auto weight = [&](size_t i) { return values(weights[i].second); };
  const int64_t D = c.hidden_dim();
  const Values q = rotate(linear(x, weight(0), D, D), c.n_heads(), c.head_dim(), c.rope_theta());
  const Values k =
      rotate(linear(x, weight(1), D, c.kv_dim()), c.n_kv_heads(), c.head_dim(), c.rope_theta());
  const Values v = linear(x, weight(2), D, c.kv_dim());
  return linear(attend(q, k, v, c.n_heads(), c.n_kv_heads(), c.head_dim()), weight(3), D, D);
}

Values feed_forward(const ModelConfig& c, const Values& x, const NamedTensors& weights) {
  const int64_t D = c.hidden_dim(), F = c.intermediate_dim();
  Values gate = linear(x, values(weights[0].second), D, F);
  const Values up = linear(x, values(weights[1].second), D, F);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
  return linear(gate, values(weights[2].second), F, D);
}

TEST_F(Layers, EmbeddingLooksRowsUp) {
  const Embedding layer(config, initializer);
  const at::Tensor tokens = initializer.tokens({B, S}, config.vocab_size());
  const Values table = values(layer.parameters("")[0].second);
  Values expected;
  for (int64_t t = 0; t < B * S; ++t) {
    const int64_t row = tokens.const_data_ptr<int64_t>()[t];
    expected.insert(expected.end(), table.begin() + row * D, table.begin() + (row + 1) * D);
  }
  expect_near(values(layer.forward(tokens)), expected, 0);
}

TEST_F(Layers, RmsNorm) {
  const RmsNorm layer(config, Variant(), initializer);
  enlarge(layer.parameters(""));
  expect_near(values(layer.forward(x)),
              rms_norm(values(x), values(layer.parameters("")[0].second), config.norm_eps()),
              kExact);
}

TEST_F(Layers, RmsNormOfNarrowTypesIsComputedInFloat32) {
  TensorInitializer narrow(7, Dtype::bf16, c10::kCPU);
  const RmsNorm layer(config, Variant(), narrow);
  // 300^2 x 12 would overflow nothing in bfloat16, but 256 + 1 is 256 there: a sum of squares in
  // bfloat16 loses small terms.
  at::Tensor row = narrow.normal({1, 1, D}, 0.01);
  row.select(2, 0).fill_(300.0);
  const at::Tensor y = layer.forward(row).to(c10::ScalarType::Double);
  const Values expected = rms_norm(values(row.to(c10::ScalarType::Double)),
                                   Values(static_cast<size_t>(D), 1.0), config.norm_eps());
  EXPECT_EQ(layer.forward(row).scalar_type(), c10::ScalarType::BFloat16);
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(values(y)[i], expected[i], std::abs(expected[i]) * 0x1p-8);
}

TEST_F(Layers, RotaryRotatesHalvesByFloat32Angles) {
  const RotaryTable table(config, Variant(), S, Dtype::f64, c10::kCPU);
  const at::Tensor heads = x.view({B, S, config.n_heads(), config.head_dim()});
  // Angles up to S have a float32 error of S x 6e-8.
  expect_near(values(table.rotate(heads)),
              rotate(values(x), config.n_heads(), config.head_dim(), config.rope_theta()), 2e-6);
  EXPECT_ANY_THROW(RotaryTable(config, Variant(), S - 1, Dtype::f64, c10::kCPU).rotate(heads));
}

TEST_F(Layers, Attention) {
  const Attention layer(config, Variant(), initializer);
  enlarge(layer.parameters(""));
  const RotaryTable table(config, Variant(), S, Dtype::f64, c10::kCPU);
  const at::Tensor y =
      layer.forward(x, table, attention_mask(config, Variant(), S, Dtype::f64, c10::kCPU));
  expect_near(values(y), attention(config, values(x), layer.parameters("")), 2e-5);
}

TEST_F(Layers, AttentionIsCausal) {
  const Attention layer(config, Variant(), initializer);
  const RotaryTable table(config, Variant(), S, Dtype::f64, c10::kCPU);
  const at::Tensor mask = attention_mask(config, Variant(), S, Dtype::f64, c10::kCPU);
  const at::Tensor before = layer.forward(x, table, mask);
  at::Tensor changed = x.clone();
  changed.select(1, S - 1).fill_(3.0);
  const at::Tensor after = layer.forward(changed, table, mask);
  expect_near(values(before.narrow(1, 0, S - 1)), values(after.narrow(1, 0, S - 1)), 0);
  EXPECT_NE(values(before.select(1, S - 1)), values(after.select(1, S - 1)));
}

TEST_F(Layers, FeedForward) {
  const FeedForward layer(config, Variant(), initializer);
  enlarge(layer.parameters(""));
  expect_near(values(layer.forward(x)), feed_forward(config, values(x), layer.parameters("")),
              kExact);
}

TEST_F(Layers, BlockIsNormsLayersAndResiduals) {
  const Block block(config, Variant(), initializer);
  const NamedTensors all = block.parameters("");
  enlarge(all);
  const auto part = [&](size_t first, size_t count) {
    return NamedTensors(all.begin() + first, all.begin() + first + count);
  };
  Values stream = values(x);
  const auto add = [&](const Values& branch) {
    for (size_t i = 0; i < stream.size(); ++i) stream[i] += branch[i];
  };
  add(attention(config, rms_norm(stream, values(all[0].second), config.norm_eps()), part(1, 4)));
  add(feed_forward(config, rms_norm(stream, values(all[5].second), config.norm_eps()), part(6, 3)));
  const RotaryTable table(config, Variant(), S, Dtype::f64, c10::kCPU);
  expect_near(
      values(block.forward(x, table, attention_mask(config, Variant(), S, Dtype::f64, c10::kCPU))),
      stream, 2e-4);
}

TEST_F(Layers, LossIsTheMeanOverNextTokens) {
  const at::Tensor logits = initializer.normal({B, S, config.vocab_size()});
  const at::Tensor tokens = initializer.tokens({B, S}, config.vocab_size());
  const Values z = values(logits);
  const int64_t V = config.vocab_size();
  double total = 0;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t s = 0; s + 1 < S; ++s) {
      double sum = 0;
      for (int64_t v = 0; v < V; ++v) sum += std::exp(z[(b * S + s) * V + v]);
      total += std::log(sum) - z[(b * S + s) * V + tokens.const_data_ptr<int64_t>()[b * S + s + 1]];
    }
  }
  EXPECT_NEAR(next_token_loss(logits, next_token_targets(tokens)).item<double>(),
              total / (B * (S - 1)), kExact);
}

TEST_F(Layers, LossNeedsANextToken) {
  EXPECT_THROW(next_token_targets(initializer.tokens({B, 1}, config.vocab_size())),
               std::invalid_argument);
}

// Against central differences of every parameter and of the input.
class Gradients : public Layers {
 protected:
  void check(const std::function<at::Tensor()>& f, const NamedTensors& leaves) {
    for (const auto& [name, leaf] : leaves)
      leaf.detach().copy_(initializer.normal(leaf.sizes(), 0.4));
    testing::expect_gradients_by_differences(f, leaves);
  }
};

TEST_F(Gradients, Block) {
  const Block block(config, Variant(), initializer);
  const RotaryTable rotary(config, Variant(), S, Dtype::f64, c10::kCPU);
  const at::Tensor mask = attention_mask(config, Variant(), S, Dtype::f64, c10::kCPU);
  NamedTensors leaves = block.parameters("");
  leaves.emplace_back("x", x.requires_grad_(true));
  // A random projection to a scalar, so that no element's gradient cancels.
  const at::Tensor weights = initializer.normal(x.sizes());
  check([&] { return (block.forward(x, rotary, mask) * weights).sum(); }, leaves);
}

TEST_F(Gradients, LossOfTheWholeModel) {
  const TinyLlama model(config, Variant(), S, initializer);
  const at::Tensor tokens = initializer.tokens({B, S}, config.vocab_size());
  const at::Tensor targets = next_token_targets(tokens);
  check([&] { return model.loss(tokens, targets); }, model.parameters());
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

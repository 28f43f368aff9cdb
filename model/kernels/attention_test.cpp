#include "model/kernels/kernels.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>

#include <limits>

#include "model/kernels/kernel_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

constexpr double kScale = 0.3;

struct Shape {
  int64_t batch, seq, heads, kv_heads, head_dim;
  int64_t window = kNoWindow;
};

// Tiles are 32 queries and 64 keys, blocks 256 keys, parts 256 queries; vectors up to 16 elements.
const std::vector<Shape> kShapes = {{1, 1, 1, 1, 2},   {2, 7, 4, 2, 5},    {1, 32, 2, 2, 16},
                                    {2, 33, 6, 3, 30}, {1, 65, 4, 1, 33},  {3, 128, 4, 4, 32},
                                    {1, 257, 2, 1, 8}, {1, 300, 2, 2, 64}, {1, 530, 2, 1, 4}};
// A window of one position, within and across tiles and blocks, as long as the sequence and longer.
const std::vector<Shape> kWindows = {
    {1, 1, 1, 1, 2, 1},     {2, 7, 4, 2, 5, 1},     {1, 33, 2, 1, 16, 4},    {1, 65, 4, 2, 8, 31},
    {1, 300, 2, 1, 8, 33},  {1, 530, 2, 1, 4, 256}, {1, 530, 2, 2, 16, 257}, {1, 777, 1, 1, 8, 300},
    {2, 128, 2, 1, 8, 127}, {1, 128, 2, 1, 8, 128}, {1, 128, 2, 1, 8, 500}};

/// Of q, k and v.
Tensors kernel(const Tensors& in) {
  return {causal_attention(in[0], in[1], in[2], kScale)};
}
Function kernel_with(int64_t window) {
  return [window](const Tensors& in) {
    return Tensors{causal_attention(in[0], in[1], in[2], kScale, window)};
  };
}

// softmax(scale q k^T, causal) v with the scores in memory, KV heads repeated.
Tensors formula_with(const Tensors& in, int64_t window) {
  const at::Tensor &q = in[0], &k = in[1], &v = in[2];
  const int64_t group = q.size(2) / k.size(2);
  const at::Tensor queries = q.transpose(1, 2);
  const at::Tensor keys = k.transpose(1, 2).repeat_interleave(group, 1);
  const at::Tensor values = v.transpose(1, 2).repeat_interleave(group, 1);
  const at::Tensor hidden =
      at::full({q.size(1), q.size(1)}, -std::numeric_limits<double>::infinity(), q.options());
  const at::Tensor mask = hidden.triu(1) + hidden.tril(-window);
  const at::Tensor scores = queries.matmul(keys.transpose(2, 3)) * kScale + mask;
  return {at::softmax(scores, -1).matmul(values).transpose(1, 2)};
}
Tensors formula(const Tensors& in) {
  return formula_with(in, kNoWindow);
}

Tensors random_inputs(const Shape& s, c10::ScalarType type) {
  return {random({s.batch, s.seq, s.heads, s.head_dim}, type),
          random({s.batch, s.seq, s.kv_heads, s.head_dim}, type),
          random({s.batch, s.seq, s.kv_heads, s.head_dim}, type)};
}

void expect_agreement(const std::vector<Shape>& shapes) {
  for (const auto type : kTypes) {
    for (const Shape& shape : shapes) {
      const Tensors in = random_inputs(shape, type), of_out = {random(in[0].sizes(), type)};
      const auto [out, gradients] = evaluated(kernel_with(shape.window), in, of_out);
      const auto [out64, gradients64] =
          evaluated([&](const Tensors& inputs) { return formula_with(inputs, shape.window); },
                    in_f64(in), in_f64(of_out));
      EXPECT_EQ(out[0].scalar_type(), type);
      EXPECT_TRUE(out[0].is_contiguous());
      // A few dozen float32 roundings, or one of a narrow type and the context's that delta is of.
      expect_close(out[0], out64[0], 32, "out");
      expect_close(gradients[0], gradients64[0], 64, "gradient of q", 1.0);
      expect_close(gradients[1], gradients64[1], 64, "gradient of k", 1.0);
      expect_close(gradients[2], gradients64[2], 64, "gradient of v", 1.0);
    }
  }
}

TEST(AttentionKernel, AgreesWithTheFormulaInFloat64) {
  expect_agreement(kShapes);
}

TEST(AttentionKernel, AgreesWithTheFormulaWithAWindow) {
  expect_agreement(kWindows);
}

TEST(AttentionKernel, ReadsPartsOfALargerBuffer) {
  // q, k and v side by side, as one projection of all three leaves them.
  const at::Tensor merged = random({2, 40, (4 + 2 + 2) * 16}, kF32);
  const auto part = [&](int64_t first, int64_t heads) {
    return merged.narrow(-1, first * 16, heads * 16).view({2, 40, heads, 16});
  };
  expect_strides_do_not_matter(kernel, {part(0, 4), part(4, 2), part(6, 2)}, {part(1, 4)});
}

TEST(AttentionKernel, LargeScoresNeitherOverflowNorLoseTheMaximum) {
  Tensors in = random_inputs({1, 300, 2, 1, 16}, kF32);
  in[0] = in[0] * 100;
  const at::Tensor out = kernel(in)[0];
  EXPECT_TRUE(out.isfinite().all().item<bool>());
  // Scores of 1,000 carry 2^10 roundings of 1.
  expect_close(out, formula(in_f64(in))[0], 4096, "out");
}

TEST(AttentionKernel, NanReachesEveryLaterPositionAndNoEarlierOne) {
  const Tensors in = random_inputs({1, 70, 2, 2, 8}, kF32);
  in[1].select(1, 40).fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor out = kernel(in)[0];
  EXPECT_TRUE(out.narrow(1, 0, 40).isfinite().all().item<bool>());
  EXPECT_TRUE(all_nan(out.narrow(1, 40, 30)));
}

TEST(AttentionKernel, ComputesBarelyMoreScoresThanACausalMaskLeaves) {
  for (const int64_t seq : {1, 7, 32, 33, 128, 1000}) {
    const int64_t causal = seq * (seq + 1) / 2;
    EXPECT_GE(causal_attention_scores(seq), causal);
    EXPECT_LE(causal_attention_scores(seq), causal + 16 * seq);
  }
  EXPECT_EQ(causal_attention_scores(64), 32 * 32 + 32 * 64);
  for (const int64_t window : {1, 5, 32, 100, 1000}) {
    const int64_t W = std::min<int64_t>(window, 1000);
    const int64_t seen = W * (W + 1) / 2 + (1000 - W) * W;
    EXPECT_GE(causal_attention_scores(1000, window), seen);
    EXPECT_LE(causal_attention_scores(1000, window), seen + 32 * 1000);
  }
}

TEST(AttentionKernel, RefusesWhatDoesNotFit) {
  const at::Tensor q = random({1, 4, 3, 8}, kF32);
  const at::Tensor k = random({1, 4, 2, 8}, kF32);
  EXPECT_THROW(causal_attention(q, k, k, kScale), c10::ValueError);
  const at::Tensor longer = random({1, 5, 3, 8}, kF32);
  EXPECT_THROW(causal_attention(q, longer, longer, kScale), c10::ValueError);
  EXPECT_THROW(causal_attention(longer, longer, longer, kScale, 0), c10::ValueError);
  const at::Tensor narrow = random({1, 4, 3, 8}, c10::ScalarType::Half);
  EXPECT_THROW(causal_attention(q, narrow, narrow, kScale), c10::ValueError);
}

}  // namespace
}  // namespace tinyllama::kernels

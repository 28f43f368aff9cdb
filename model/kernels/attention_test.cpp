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
};

// Tiles are 32 queries and 64 keys, blocks 256 keys, parts 256 queries; vectors up to 16 elements.
const std::vector<Shape> kShapes = {{1, 1, 1, 1, 2},   {2, 7, 4, 2, 5},    {1, 32, 2, 2, 16},
                                    {2, 33, 6, 3, 30}, {1, 65, 4, 1, 33},  {3, 128, 4, 4, 32},
                                    {1, 257, 2, 1, 8}, {1, 300, 2, 2, 64}, {1, 530, 2, 1, 4}};

// softmax(scale q k^T, causal) v with the scores in memory, KV heads repeated.
at::Tensor reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t group = q.size(2) / k.size(2);
  const at::Tensor queries = q.transpose(1, 2);
  const at::Tensor keys = k.transpose(1, 2).repeat_interleave(group, 1);
  const at::Tensor values = v.transpose(1, 2).repeat_interleave(group, 1);
  const at::Tensor mask =
      at::full({q.size(1), q.size(1)}, -std::numeric_limits<double>::infinity(), q.options())
          .triu(1);
  const at::Tensor scores = queries.matmul(keys.transpose(2, 3)) * kScale + mask;
  return at::softmax(scores, -1).matmul(values).transpose(1, 2);
}

struct Inputs {
  at::Tensor q, k, v;
};

Inputs random_inputs(const Shape& s, c10::ScalarType type) {
  return {random({s.batch, s.seq, s.heads, s.head_dim}, type).requires_grad_(),
          random({s.batch, s.seq, s.kv_heads, s.head_dim}, type).requires_grad_(),
          random({s.batch, s.seq, s.kv_heads, s.head_dim}, type).requires_grad_()};
}

TEST(AttentionKernel, AgreesWithTheFormulaInFloat64) {
  for (const auto type : kTypes) {
    for (const Shape& shape : kShapes) {
      const Inputs in = random_inputs(shape, type);
      const at::Tensor gradient = random(in.q.sizes(), type);
      const at::Tensor out = causal_attention(in.q, in.k, in.v, kScale);
      out.backward(gradient);
      const Inputs wide{as_f64_leaf(in.q), as_f64_leaf(in.k), as_f64_leaf(in.v)};
      const at::Tensor expected = reference(wide.q, wide.k, wide.v);
      expected.backward(gradient.to(kF64));
      EXPECT_EQ(out.scalar_type(), type);
      EXPECT_TRUE(out.is_contiguous());
      // A few dozen float32 roundings, or one of a narrow type and the context's that delta is of.
      expect_close(out, expected, 32, "out");
      expect_close(in.q.grad(), wide.q.grad(), 64, "gradient of q", 1.0);
      expect_close(in.k.grad(), wide.k.grad(), 64, "gradient of k", 1.0);
      expect_close(in.v.grad(), wide.v.grad(), 64, "gradient of v", 1.0);
    }
  }
}

TEST(AttentionKernel, ReadsPartsOfALargerBuffer) {
  // q, k and v side by side, as one projection of all three leaves them.
  const at::Tensor merged = random({2, 40, (4 + 2 + 2) * 16}, kF32);
  const auto part = [&](int64_t first, int64_t heads) {
    return merged.narrow(-1, first * 16, heads * 16).view({2, 40, heads, 16});
  };
  const at::Tensor q = part(0, 4), k = part(4, 2), v = part(6, 2);
  const at::Tensor strided = causal_attention(q, k, v, kScale);
  const at::Tensor packed =
      causal_attention(q.contiguous(), k.contiguous(), v.contiguous(), kScale);
  expect_same_bits(strided, packed, "strided inputs");
}

TEST(AttentionKernel, LargeScoresNeitherOverflowNorLoseTheMaximum) {
  const Inputs in = random_inputs({1, 300, 2, 1, 16}, kF32);
  const at::Tensor q = in.q.detach() * 100;
  const at::Tensor out = causal_attention(q, in.k.detach(), in.v.detach(), kScale);
  const at::Tensor expected = reference(q.to(kF64), in.k.detach().to(kF64), in.v.detach().to(kF64));
  EXPECT_TRUE(out.isfinite().all().item<bool>());
  expect_close(out, expected, 4096, "out");  // scores of 1,000 carry 2^10 roundings of 1
}

TEST(AttentionKernel, NanReachesEveryLaterPositionAndNoEarlierOne) {
  const Inputs in = random_inputs({1, 70, 2, 2, 8}, kF32);
  const at::Tensor k = in.k.detach().clone();
  k.select(1, 40).fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor out = causal_attention(in.q.detach(), k, in.v.detach(), kScale);
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
}

TEST(AttentionKernel, RefusesWhatDoesNotFit) {
  const at::Tensor q = random({1, 4, 3, 8}, kF32);
  const at::Tensor k = random({1, 4, 2, 8}, kF32);
  EXPECT_THROW(causal_attention(q, k, k, kScale), c10::ValueError);
  const at::Tensor longer = random({1, 5, 3, 8}, kF32);
  EXPECT_THROW(causal_attention(q, longer, longer, kScale), c10::ValueError);
  const at::Tensor narrow = random({1, 4, 3, 8}, c10::ScalarType::Half);
  EXPECT_THROW(causal_attention(q, narrow, narrow, kScale), c10::ValueError);
}

}  // namespace
}  // namespace tinyllama::kernels

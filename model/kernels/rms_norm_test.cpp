#include "model/kernels/kernels.hpp"

#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "model/kernels/kernel_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

constexpr double kEps = 1e-5;

at::Tensor reference(const at::Tensor& x, const at::Tensor& weight) {
  return weight * x * at::rsqrt(x.pow(2).mean(-1, true) + kEps);
}

// Row counts that are no multiple of what is handled at once, widths around every vector's length,
// and one shape that several threads share.
const std::vector<std::vector<int64_t>> kShapes = {{1, 1},  {5, 7},   {2, 3, 12},
                                                   {9, 33}, {6, 256}, {301, 130}};

TEST(RmsNormKernel, AgreesWithTheFormulaInFloat64) {
  for (const auto type : kTypes) {
    for (const auto& shape : kShapes) {
      const at::Tensor x = random(shape, type).requires_grad_();
      const at::Tensor weight = random({shape.back()}, type).requires_grad_();
      const at::Tensor gradient = random(shape, type);
      const at::Tensor out = rms_norm(x, weight, kEps);
      out.backward(gradient);
      const at::Tensor x64 = as_f64_leaf(x), weight64 = as_f64_leaf(weight);
      const at::Tensor out64 = reference(x64, weight64);
      out64.backward(gradient.to(kF64));
      EXPECT_EQ(out.scalar_type(), type);
      expect_close(out, out64, 4, "out");
      // Relative to the terms of a difference, which for D = 1 leaves nothing but eps.
      if (shape.back() > 1) expect_close(x.grad(), x64.grad(), 8, "x gradient");
      expect_close(weight.grad(), weight64.grad(), 16, "weight gradient");
    }
  }
}

TEST(RmsNormKernel, TakesAnyStrides) {
  const at::Tensor x = random({12, 3, 5}, kF32).transpose(0, 2).requires_grad_();
  const at::Tensor weight = random({12}, kF32);
  const at::Tensor out = rms_norm(x, weight, kEps);
  expect_same_bits(out, rms_norm(x.contiguous(), weight, kEps), "out");
  const at::Tensor expanded = random({1}, kF32).expand_as(out);
  out.backward(expanded);
  const at::Tensor copy = leaf(x.contiguous());
  rms_norm(copy, weight, kEps).backward(expanded.contiguous());
  expect_same_bits(x.grad(), copy.grad(), "x gradient");
}

TEST(RmsNormKernel, RoundsBeforeTheScaleAsLlamaDoes) {
  const at::Tensor x = random({40, 256}, kBf16);
  const at::Tensor weight = random({256}, kBf16);
  const at::Tensor wide = x.to(kF32);
  const at::Tensor normalized = wide * at::rsqrt(wide.pow(2).mean(-1, true) + kEps);
  const at::Tensor expected = weight * normalized.to(kBf16);
  // Equal, but for values that sums in another order put on the other side of a tie.
  const auto different = (rms_norm(x, weight, kEps) != expected).sum().item<int64_t>();
  EXPECT_LE(different, 5);
}

TEST(RmsNormKernel, NanAndInfinityStayVisible) {
  for (const auto type : kTypes) {
    at::Tensor x = random({3, 13}, type);
    x[1][12] = std::numeric_limits<double>::quiet_NaN();
    x[2][3] = std::numeric_limits<double>::infinity();
    const at::Tensor out = rms_norm(x, random({13}, type), kEps);
    EXPECT_FALSE(out[0].isnan().any().item<bool>());
    EXPECT_TRUE(all_nan(out[1]));
    EXPECT_TRUE(out[2][3].isnan().item<bool>()) << "infinity times 0";
  }
}

TEST(RmsNormKernel, ErrorsNameValueAndRule) {
  const at::Tensor x = random({2, 4}, kF32);
  EXPECT_THROW(rms_norm(x, random({5}, kF32), kEps), c10::ValueError);
  EXPECT_THROW(rms_norm(x, random({4}, kBf16), kEps), c10::ValueError);
  EXPECT_THROW(rms_norm(x.to(c10::ScalarType::Long), x[0].to(c10::ScalarType::Long), kEps),
               c10::ValueError);
  EXPECT_THROW(add_rms_norm(x, random({2, 3}, kF32), x[0], kEps), c10::ValueError);
  EXPECT_THROW(add_rms_norm(x.to(kBf16), x.to(kF16), x[0].to(kBf16), kEps), c10::ValueError);
}

struct AddCase {
  c10::ScalarType residual, branch;
};
const std::vector<AddCase> kAddCases = {{kF64, kF64}, {kF32, kF32},  {kBf16, kBf16},
                                        {kF16, kF16}, {kF32, kBf16}, {kF32, kF16}};

TEST(AddRmsNormKernel, AgreesWithTheFormulaInFloat64) {
  for (const auto& types : kAddCases) {
    for (const auto& shape : kShapes) {
      if (shape.back() == 1) continue;
      const at::Tensor residual = random(shape, types.residual).requires_grad_();
      const at::Tensor branch = random(shape, types.branch).requires_grad_();
      const at::Tensor weight = random({shape.back()}, types.residual).requires_grad_();
      const at::Tensor of_sum = random(shape, types.residual);
      const at::Tensor of_norm = random(shape, types.residual);
      const auto [sum, norm] = add_rms_norm(residual, branch, weight, kEps);
      torch::autograd::backward({sum, norm}, {of_sum, of_norm});
      const at::Tensor sum64 = as_f64_leaf(sum), weight64 = as_f64_leaf(weight);
      const at::Tensor norm64 = reference(sum64, weight64);
      norm64.backward(of_norm.to(kF64));
      const at::Tensor gradient64 = sum64.grad() + of_sum.to(kF64);
      EXPECT_EQ(sum.scalar_type(), types.residual);
      EXPECT_EQ(branch.grad().scalar_type(), types.branch);
      expect_same_bits(sum, (residual + branch).to(types.residual), "sum");
      expect_close(norm, norm64, 4, "norm");
      expect_close(residual.grad(), gradient64, 8, "residual gradient");
      expect_close(branch.grad(), gradient64, 8, "branch gradient");
      expect_close(weight.grad(), weight64.grad(), 16, "weight gradient");
    }
  }
}

TEST(AddRmsNormKernel, OneOfTheOutputsMayBeUnused) {
  const at::Tensor residual = random({4, 12}, kF32);
  const at::Tensor branch = random({4, 12}, kBf16);
  const at::Tensor weight = random({12}, kF32);
  const at::Tensor gradient = random({4, 12}, kF32);
  const at::Tensor r = leaf(residual), b = leaf(branch), w = leaf(weight);
  add_rms_norm(r, b, w, kEps).first.backward(gradient);
  expect_same_bits(r.grad(), gradient, "residual gradient");
  expect_same_bits(b.grad(), gradient.to(kBf16), "branch gradient");
  EXPECT_FALSE(w.grad().defined());
  const at::Tensor r2 = leaf(residual), w2 = leaf(weight), x = leaf(residual + branch);
  add_rms_norm(r2, branch, w2, kEps).second.backward(gradient);
  rms_norm(x, leaf(weight), kEps).backward(gradient);
  // Not the same bits: which product is fused into the difference is the compiler's choice.
  expect_close(r2.grad(), x.grad(), 8, "residual gradient of the norm alone");
}

}  // namespace
}  // namespace tinyllama::kernels

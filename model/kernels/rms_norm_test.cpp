#include "model/kernels/kernels.hpp"

#include <limits>

#include "model/kernels/kernel_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

constexpr double kEps = 1e-5;

/// Of x and weight.
Tensors kernel(const Tensors& in) {
  return {rms_norm(in[0], in[1], kEps)};
}
Tensors formula(const Tensors& in) {
  return {in[1] * in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + kEps)};
}

/// Of residual, branch and weight.
Tensors add_kernel(const Tensors& in) {
  const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2], kEps);
  return {sum, norm};
}

// Row counts that are no multiple of what is handled at once, widths around every vector's length,
// and one shape that several threads share.
const std::vector<std::vector<int64_t>> kShapes = {{1, 1},  {5, 7},   {2, 3, 12},
                                                   {9, 33}, {6, 256}, {301, 130}};

TEST(RmsNormKernel, AgreesWithTheFormulaInFloat64) {
  for (const auto type : kTypes) {
    for (const auto& shape : kShapes) {
      const Tensors inputs = {random(shape, type), random({shape.back()}, type)};
      const Tensors of_out = {random(shape, type)};
      const auto [out, gradients] = evaluated(kernel, inputs, of_out);
      const auto [out64, gradients64] = evaluated(formula, in_f64(inputs), in_f64(of_out));
      EXPECT_EQ(out[0].scalar_type(), type);
      expect_close(out[0], out64[0], 4, "out");
      // Relative to the terms of a difference, which for D = 1 leaves nothing but eps.
      if (shape.back() > 1) expect_close(gradients[0], gradients64[0], 8, "x gradient");
      expect_close(gradients[1], gradients64[1], 16, "weight gradient");
    }
  }
}

TEST(RmsNormKernel, TakesAnyStrides) {
  const at::Tensor turned = random({12, 3, 5}, kF32).transpose(0, 2);
  expect_strides_do_not_matter(kernel, {turned, random({12}, kF32)},
                               {random({1}, kF32).expand({5, 3, 12})});
  expect_strides_do_not_matter(add_kernel, {turned, turned, random({12}, kF32)}, {turned, turned});
}

// A GPU reads several elements at once only where they lie at a multiple of their size.
TEST(RmsNormKernel, ReadsMemoryThatIsNotAligned) {
  for (const auto type : kTypes) {
    const Tensors inputs = {random({65}, type).narrow(0, 1, 64).view({2, 32}), random({32}, type)};
    expect_close(kernel(inputs)[0], formula(in_f64(inputs))[0], 4, "out");
  }
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
      const Tensors inputs = {random(shape, types.residual), random(shape, types.branch),
                              random({shape.back()}, types.residual)};
      const Tensors of_out = {random(shape, types.residual), random(shape, types.residual)};
      const auto [out, gradients] = evaluated(add_kernel, inputs, of_out);
      const at::Tensor sum = (inputs[0] + inputs[1]).to(types.residual);
      const auto [norm64, gradients64] =
          evaluated(formula, in_f64({sum, inputs[2]}), in_f64({of_out[1]}));
      const at::Tensor stream64 = gradients64[0] + of_out[0].to(kF64);
      EXPECT_EQ(gradients[1].scalar_type(), types.branch);
      expect_same_bits(out[0], sum, "sum");
      expect_close(out[1], norm64[0], 4, "norm");
      expect_close(gradients[0], stream64, 8, "residual gradient");
      expect_close(gradients[1], stream64, 8, "branch gradient");
      expect_close(gradients[2], gradients64[1], 16, "weight gradient");
    }
  }
}

// Of so many rows that a GPU and several threads add up the weight's gradient in parts.
TEST(AddRmsNormKernel, TwoRunsAreTheSameBitForBit) {
  const Tensors inputs = {random({301, 130}, kF32), random({301, 130}, kF32), random({130}, kF32)};
  expect_strides_do_not_matter(add_kernel, inputs, {inputs[1], inputs[0]});
}

TEST(AddRmsNormKernel, OneOfTheOutputsMayBeUnused) {
  const at::Tensor residual = random({4, 12}, kF32), branch = random({4, 12}, kBf16);
  const at::Tensor weight = random({12}, kF32), gradient = random({4, 12}, kF32);
  const auto one_of = [](size_t i) {
    return [i](const Tensors& in) { return Tensors{add_kernel(in)[i]}; };
  };
  const Tensors of_sum = evaluated(one_of(0), {residual, branch, weight}, {gradient}).gradients;
  expect_same_bits(of_sum[0], gradient, "residual gradient");
  expect_same_bits(of_sum[1], gradient.to(kBf16), "branch gradient");
  EXPECT_FALSE(of_sum[2].defined());
  const Tensors of_norm = evaluated(one_of(1), {residual, branch, weight}, {gradient}).gradients;
  const Tensors alone = evaluated(kernel, {residual + branch, weight}, {gradient}).gradients;
  // Not the same bits: which product is fused into the difference is the compiler's choice.
  expect_close(of_norm[0], alone[0], 8, "residual gradient of the norm alone");
}

}  // namespace
}  // namespace tinyllama::kernels

#include "model/kernels/kernels.hpp"

#include <limits>

#include "model/kernels/kernel_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

const std::vector<std::vector<int64_t>> kShapes = {{1},        {5, 7},  {2, 3, 12},
                                                   {2, 2, 33}, {1, 64}, {270, 129}};

/// Of gate and up.
Tensors kernel(const Tensors& in) {
  return {swiglu(in[0], in[1])};
}
Tensors formula(const Tensors& in) {
  return {in[0] * at::sigmoid(in[0]) * in[1]};
}
Tensors merged_kernel(const Tensors& in) {
  return {swiglu_merged(in[0])};
}

TEST(SwigluKernel, AgreesWithTheFormulaInFloat64) {
  for (const auto type : kTypes) {
    for (const auto& shape : kShapes) {
      const Tensors inputs = {random(shape, type) * 3, random(shape, type)};
      const Tensors of_out = {random(shape, type)};
      const auto [out, gradients] = evaluated(kernel, inputs, of_out);
      const auto [out64, gradients64] = evaluated(formula, in_f64(inputs), in_f64(of_out));
      EXPECT_EQ(out[0].scalar_type(), type);
      expect_close(out[0], out64[0], 6, "out");
      // silu' = sigmoid * (1 + gate * (1 - sigmoid)), whose terms cancel: roundings are relative to
      // their sizes, not to their sum's.
      const at::Tensor g = inputs[0].to(kF64), s = at::sigmoid(g);
      const at::Tensor terms = s * (1 + g.abs() * (1 + s)) * (inputs[1].to(kF64) * of_out[0]).abs();
      expect_close(gradients[0], gradients64[0], 6, "gate gradient", terms.max().item<double>());
      expect_close(gradients[1], gradients64[1], 6, "up gradient");
    }
  }
}

TEST(SwigluKernel, MergedAgreesWithSeparateHalves) {
  for (const auto type : kTypes) {
    for (const auto& shape : kShapes) {
      const at::Tensor gate_up = at::cat({random(shape, type), random(shape, type)}, -1);
      const at::Tensor of_out = random(shape, type);
      const Evaluation merged = evaluated(merged_kernel, {gate_up}, {of_out});
      const Evaluation halves = evaluated(kernel, gate_up.chunk(2, -1), {of_out});
      expect_same_bits(merged.results[0], halves.results[0], "out");
      expect_same_bits(merged.gradients[0], at::cat(halves.gradients, -1), "gradient");
    }
  }
}

TEST(SwigluKernel, TakesAnyStrides) {
  const at::Tensor up = random({3, 5, 12}, kF32);
  const at::Tensor rows_apart = random({3, 5, 30}, kF32).narrow(2, 4, 12);
  const at::Tensor uneven = random({5, 3, 12}, kF32).transpose(0, 1);
  const at::Tensor scattered = random({12, 3, 5}, kF32).permute({1, 2, 0});
  const at::Tensor repeated = random({12}, kF32).expand({3, 5, 12});
  for (const at::Tensor& values : {rows_apart, uneven, scattered, repeated})
    expect_strides_do_not_matter(kernel, {values, up}, {uneven});
}

TEST(SwigluKernel, TheStrideOfAnOnlyRowIsNotRead) {
  // strides 12, 36, 1, which libtorch calls contiguous
  const at::Tensor gate = random({1, 3, 12}, kF32).transpose(0, 1);
  const at::Tensor plain = at::empty({3, 1, 12}, gate.options()).copy_(gate);
  expect_same_bits(swiglu(gate, plain), swiglu(plain, plain), "out");
}

TEST(SwigluKernel, ExtremesAsSiluHasThem) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const auto type : kTypes) {
    const at::Tensor gate = at::tensor({-1000.0, -90.0, 0.0, 90.0, 1000.0, infinity, -infinity,
                                        std::numeric_limits<double>::quiet_NaN()})
                                .to(type);
    const at::Tensor out = swiglu(gate, at::ones_like(gate));
    const at::Tensor expected = at::silu(gate.to(kF64)).to(type);
    EXPECT_TRUE(at::allclose(out.narrow(0, 0, 6), expected.narrow(0, 0, 6), 0.01, 1e-30));
    EXPECT_TRUE(all_nan(out.narrow(0, 6, 2)));
  }
}

TEST(SwigluKernel, ErrorsNameValueAndRule) {
  EXPECT_THROW(swiglu(random({2, 3}, kF32), random({2, 4}, kF32)), c10::ValueError);
  EXPECT_THROW(swiglu(random({2, 3}, kF32), random({2, 3}, kF64)), c10::ValueError);
  EXPECT_THROW(swiglu_merged(random({2, 3}, kF32)), c10::ValueError);
}

}  // namespace
}  // namespace tinyllama::kernels

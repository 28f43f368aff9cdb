#include "model/kernels/kernels.hpp"

#include <limits>

#include "model/kernels/kernel_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

const std::vector<std::vector<int64_t>> kShapes = {{1},        {5, 7},  {2, 3, 12},
                                                   {2, 2, 33}, {1, 64}, {270, 129}};

at::Tensor reference(const at::Tensor& gate, const at::Tensor& up) {
  return gate * at::sigmoid(gate) * up;
}

TEST(SwigluKernel, AgreesWithTheFormulaInFloat64) {
  for (const auto type : kTypes) {
    for (const auto& shape : kShapes) {
      const at::Tensor gate = (random(shape, type) * 3).requires_grad_();
      const at::Tensor up = random(shape, type).requires_grad_();
      const at::Tensor gradient = random(shape, type);
      const at::Tensor out = swiglu(gate, up);
      out.backward(gradient);
      const at::Tensor gate64 = as_f64_leaf(gate), up64 = as_f64_leaf(up);
      const at::Tensor out64 = reference(gate64, up64);
      out64.backward(gradient.to(kF64));
      EXPECT_EQ(out.scalar_type(), type);
      expect_close(out, out64, 6, "out");
      // silu' = sigmoid * (1 + gate * (1 - sigmoid)), whose terms cancel: roundings are relative to
      // their sizes, not to their sum's.
      const at::Tensor g = gate64.detach(), s = at::sigmoid(g);
      const at::Tensor terms = s * (1 + g.abs() * (1 + s)) * (up64.detach() * gradient).abs();
      expect_close(gate.grad(), gate64.grad(), 6, "gate gradient", terms.max().item<double>());
      expect_close(up.grad(), up64.grad(), 6, "up gradient");
    }
  }
}

TEST(SwigluKernel, MergedAgreesWithSeparateHalves) {
  for (const auto type : kTypes) {
    for (const auto& shape : kShapes) {
      auto merged_shape = shape;
      merged_shape.back() *= 2;
      const at::Tensor gate_up = random(merged_shape, type).requires_grad_();
      const at::Tensor gradient = random(shape, type);
      const at::Tensor out = swiglu_merged(gate_up);
      out.backward(gradient);
      const auto halves = gate_up.detach().chunk(2, -1);
      const at::Tensor gate = leaf(halves[0]), up = leaf(halves[1]);
      const at::Tensor separate = swiglu(gate, up);
      separate.backward(gradient);
      expect_same_bits(out, separate, "out");
      expect_same_bits(gate_up.grad(), at::cat({gate.grad(), up.grad()}, -1), "gradient");
    }
  }
}

TEST(SwigluKernel, TakesAnyStrides) {
  const at::Tensor up = random({3, 5, 12}, kF32);
  const at::Tensor rows_apart = random({3, 5, 30}, kF32).narrow(2, 4, 12);
  const at::Tensor uneven = random({5, 3, 12}, kF32).transpose(0, 1);
  const at::Tensor scattered = random({12, 3, 5}, kF32).permute({1, 2, 0});
  const at::Tensor repeated = random({12}, kF32).expand({3, 5, 12});
  for (const at::Tensor& values : {rows_apart, uneven, scattered, repeated}) {
    const at::Tensor gate = leaf(values), copy = leaf(values.contiguous());
    const at::Tensor out = swiglu(gate, up);
    const at::Tensor expected = swiglu(copy, up);
    expect_same_bits(out, expected, "out");
    out.backward(uneven);
    expected.backward(uneven.contiguous());
    expect_same_bits(gate.grad(), copy.grad(), "gate gradient");
  }
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

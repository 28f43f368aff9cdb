#include "model/kernels/kernels.hpp"

#include <limits>

#include "model/kernels/kernel_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

struct Table {
  at::Tensor cos, sin;
};

// Random angles, both halves of a head alike.
Table table(int64_t positions, int64_t head_dim, c10::ScalarType type) {
  const at::Tensor half = random({positions, 1, head_dim / 2}, kF64) * 3;
  const at::Tensor angles = at::cat({half, half}, -1);
  return {angles.cos().to(type), angles.sin().to(type)};
}

Function kernel(const Table& t) {
  return [t](const Tensors& in) { return Tensors{rotate(in[0], t.cos, t.sin)}; };
}
Function formula(const Table& t) {
  return [t](const Tensors& in) {
    const at::Tensor& x = in[0];
    const int64_t half = x.size(-1) / 2;
    const auto rows = [&](const at::Tensor& values) {
      return values.narrow(0, 0, x.size(1)).to(kF64);
    };
    const at::Tensor turned = at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
    return Tensors{x * rows(t.cos) + turned * rows(t.sin)};
  };
}

const std::vector<std::vector<int64_t>> kShapes = {
    {1, 1, 1, 2}, {2, 3, 2, 14}, {2, 5, 3, 16}, {1, 7, 2, 66}, {3, 50, 8, 64}};

TEST(RotaryKernel, AgreesWithTheFormulaInFloat64) {
  for (const auto type : kTypes) {
    for (const auto& shape : kShapes) {
      const Table t = table(shape[1] + 2, shape[3], type);
      const Tensors x = {random(shape, type)}, of_out = {random(shape, type)};
      const auto [out, gradients] = evaluated(kernel(t), x, of_out);
      const auto [out64, gradients64] = evaluated(formula(t), in_f64(x), in_f64(of_out));
      EXPECT_EQ(out[0].scalar_type(), type);
      EXPECT_TRUE(out[0].is_contiguous());
      expect_close(out[0], out64[0], 2, "out");
      expect_close(gradients[0], gradients64[0], 2, "gradient");
    }
  }
}

TEST(RotaryKernel, TakesAnyStridesForwardsAndBackwards) {
  const Table t = table(6, 12, kF32);
  // The first 3 of 5 heads that lie beside each other, heads before positions, elements that are
  // not beside each other, and an expanded gradient.
  const at::Tensor part = random({2, 6, 5, 12}, kF32).narrow(2, 1, 3);
  const at::Tensor heads_first = random({2, 3, 6, 12}, kF32).transpose(1, 2);
  const at::Tensor scattered = random({2, 6, 12, 3}, kF32).transpose(2, 3);
  for (const at::Tensor& values : {part, heads_first, scattered, part.sum().expand_as(part)})
    expect_strides_do_not_matter(kernel(t), {values}, {values});
}

TEST(RotaryKernel, NanStaysVisible) {
  for (const auto type : kTypes) {
    const Table t = table(2, 14, type);
    at::Tensor x = random({1, 2, 1, 14}, type);
    x[0][1][0][6] = std::numeric_limits<double>::quiet_NaN();
    const at::Tensor nan = rotate(x, t.cos, t.sin).isnan();
    EXPECT_EQ(nan.sum().item<int64_t>(), 2);
    EXPECT_TRUE(nan[0][1][0][6].item<bool>());
    EXPECT_TRUE(nan[0][1][0][13].item<bool>());
  }
}

TEST(RotaryKernel, ErrorsNameValueAndRule) {
  const Table t = table(4, 6, kF32);
  EXPECT_THROW(rotate(random({1, 5, 2, 6}, kF32), t.cos, t.sin), c10::ValueError);
  EXPECT_THROW(rotate(random({1, 4, 2, 8}, kF32), t.cos, t.sin), c10::ValueError);
  EXPECT_THROW(rotate(random({1, 4, 2, 6}, kF64), t.cos, t.sin), c10::ValueError);
  EXPECT_THROW(rotate(random({4, 2, 6}, kF32), t.cos, t.sin), c10::ValueError);
}

}  // namespace
}  // namespace tinyllama::kernels

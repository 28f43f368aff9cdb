// Helpers of the tests of kernels: the same values in every type, and a float64 reference.
#pragma once

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "model/kernels/cpu/range_kernels.hpp"

namespace tinyllama::kernels::testing {

inline constexpr auto kF64 = c10::ScalarType::Double;
inline constexpr auto kF32 = c10::ScalarType::Float;
inline constexpr auto kBf16 = c10::ScalarType::BFloat16;
inline constexpr auto kF16 = c10::ScalarType::Half;
inline const std::vector<c10::ScalarType> kTypes = {kF64, kF32, kBf16, kF16};

/// Largest relative error of one rounding to the type.
inline double unit_roundoff(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Double:
      return 0x1p-53;
    case c10::ScalarType::Float:
      return 0x1p-24;
    case c10::ScalarType::BFloat16:
      return 0x1p-8;
    default:
      return 0x1p-11;
  }
}

// libtorch seeds its generator from the system; a failure is to be repeatable.
class SeededEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { at::manual_seed(1); }
};
inline ::testing::Environment* const kSeededEnvironment =
    ::testing::AddGlobalTestEnvironment(new SeededEnvironment);

/// Values from N(0, 1) as `type` holds them.
inline at::Tensor random(at::IntArrayRef shape, c10::ScalarType type) {
  return at::randn(shape, at::TensorOptions().dtype(c10::ScalarType::Double)).to(type);
}

/// Every element of `actual` is within `units` roundings of its type, relative to the largest
/// magnitude of `expected` (float64), or to `at_least` where that is more.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double units,
                         const char* what, double at_least = 0) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const double largest = std::max(at_least, expected.abs().max().item<double>());
  const double error =
      (actual.detach().to(c10::ScalarType::Double) - expected.detach()).abs().max().item<double>();
  EXPECT_LE(error, units * unit_roundoff(actual.scalar_type()) * largest)
      << what << ", type " << c10::toString(actual.scalar_type()) << ", shape " << actual.sizes();
}

/// One update with ordinary numbers.
template <class T>
AdamWElements<T> adamw_elements(T* parameter, const T* gradient, T* first, T* second) {
  return {parameter, gradient, first, second, 0.99F, 0.1F, 0.999F, 0.001F, 2.0F, 0.01F, 1e-8F};
}

/// Bit for bit, NaN included.
inline void expect_same_bits(const at::Tensor& a, const at::Tensor& b, const char* what) {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
  const at::Tensor first = a.detach().contiguous();
  const at::Tensor second = b.detach().contiguous();
  const auto bytes = [](const at::Tensor& tensor) {
    return std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
  };
  EXPECT_TRUE(std::ranges::equal(bytes(first), bytes(second))) << what;
}

inline bool all_nan(const at::Tensor& tensor) {
  return tensor.isnan().all().item<bool>();
}

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

inline Tensors in_f64(const Tensors& tensors) {
  Tensors wide;
  for (const at::Tensor& tensor : tensors) wide.push_back(tensor.to(kF64));
  return wide;
}

struct Evaluation {
  Tensors results;
  Tensors gradients;  ///< of the inputs; undefined where none arrives
};

/// `function` of leaves that are `inputs`, whose results have these gradients, or 1/2 throughout
/// where none are given.
inline Evaluation evaluated(const Function& function, const Tensors& inputs,
                            Tensors gradients = {}) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_());
  Evaluation evaluation{function(leaves), {}};
  for (size_t i = gradients.size(); i < evaluation.results.size(); ++i)
    gradients.push_back(at::full_like(evaluation.results[i], 0.5));
  torch::autograd::backward(evaluation.results, gradients);
  for (const at::Tensor& leaf : leaves) evaluation.gradients.push_back(leaf.grad());
  return evaluation;
}

/// Inputs and gradients with any strides, and copies of them without gaps, give the same bits.
inline void expect_strides_do_not_matter(const Function& function, const Tensors& inputs,
                                         const Tensors& gradients) {
  const auto copied = [](const Tensors& tensors) {
    Tensors copies;
    for (const at::Tensor& tensor : tensors)
      copies.push_back(at::empty(tensor.sizes(), tensor.options()).copy_(tensor));
    return copies;
  };
  const Evaluation actual = evaluated(function, inputs, gradients);
  const Evaluation expected = evaluated(function, copied(inputs), copied(gradients));
  for (size_t i = 0; i < expected.results.size(); ++i)
    expect_same_bits(actual.results[i], expected.results[i], "result");
  for (size_t i = 0; i < expected.gradients.size(); ++i)
    expect_same_bits(actual.gradients[i], expected.gradients[i], "gradient");
}

}  // namespace tinyllama::kernels::testing

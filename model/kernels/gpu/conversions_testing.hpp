// A GPU's conversions between float32 and narrow types, bit by bit, through a kernel that does
// nothing else with certain numbers: add_rms_norm of a float32 residual and a narrow branch.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nextafter.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <limits>

#include "model/kernels/kernel_testing.hpp"
#include "model/kernels/kernels.hpp"

namespace tinyllama::kernels::testing {

/// Every pattern of 16 bits as a number of the type: [64, 1024].
inline at::Tensor every_number(c10::ScalarType type) {
  return at::arange(1 << 16, c10::ScalarType::Int)
      .to(c10::ScalarType::Short)
      .view(type)
      .view({64, 1024});
}

/// float32 numbers at every edge of a rounding to the type: its own numbers, the middles between
/// neighbours, what is beside both, where overflow begins, and random patterns: [n, 1024].
inline at::Tensor edges_of_rounding(c10::ScalarType type) {
  const at::Tensor numbers = every_number(type).to(kF32).flatten();
  const at::Tensor middles = (numbers + numbers.roll(-1)) / 2;
  const double largest = type == kBf16 ? 0x1.FEp127 : 65504;
  const double overflow = type == kBf16 ? 0x1.FFp127 : 65520;
  const at::Tensor ends = at::full({1024}, largest, kF32);
  ends.narrow(0, 0, 512).fill_(overflow);
  const at::Tensor at_edges = at::cat({numbers, middles, ends, -ends});
  const at::Tensor patterns =
      at::randint(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                  {1 << 18}, c10::ScalarType::Int);
  const double infinity = std::numeric_limits<double>::infinity();
  const auto beside = [&](double where) {
    return at::nextafter(at_edges, at::full({1}, where, kF32));
  };
  return at::cat({at_edges, beside(infinity), beside(-infinity), patterns.view(kF32)})
      .view({-1, 1024});
}

/// The same bits, but for NaNs, which only have to be ones.
inline void expect_same_numbers(const at::Tensor& actual, const at::Tensor& expected,
                                const char* what) {
  const auto without_nans = [](const at::Tensor& x) { return x.masked_fill(x.isnan(), 777); };
  expect_same_bits(actual.isnan(), expected.isnan(), what);
  expect_same_bits(without_nans(actual), without_nans(expected), what);
}

/// Against libtorch's conversions on the CPU.
inline void expect_exact_conversions(c10::Device device) {
  const Function sum_and_norm = [](const Tensors& in) {
    const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2], 1e-5);
    return Tensors{sum, norm};
  };
  for (const auto type : {kBf16, kF16}) {
    SCOPED_TRACE(c10::toString(type));
    const auto filled = [&](const at::Tensor& like, double value, c10::ScalarType of_type) {
      return at::full(like.sizes(), value, of_type).to(device);
    };
    const at::Tensor weight = at::full({1024}, 1.0, kF32).to(device);
    // -0 + x is x, -0 and subnormal numbers included.
    const at::Tensor numbers = every_number(type);
    const Tensors sums = sum_and_norm({filled(numbers, -0.0, kF32), numbers.to(device), weight});
    expect_same_numbers(sums[0].cpu(), numbers.to(kF32), "widened");
    // A norm whose gradient is -0 adds -0 to the gradient of the sum, which the branch gets.
    const at::Tensor edges = edges_of_rounding(type);
    const Tensors inputs = {filled(edges, 1, kF32), filled(edges, 0, type), weight};
    const Evaluation evaluation =
        evaluated(sum_and_norm, inputs, {edges.to(device), filled(edges, -0.0, kF32)});
    expect_same_numbers(evaluation.gradients[0].cpu(), edges, "not converted");
    expect_same_numbers(evaluation.gradients[1].cpu(), edges.to(type), "narrowed");
  }
}

}  // namespace tinyllama::kernels::testing

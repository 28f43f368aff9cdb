// Helpers of the tests in this folder: small shapes, plain loops, finite differences.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "model/config.hpp"
#include "model/parameters.hpp"

namespace tinyllama::testing {

/// Grouped-query attention (2 groups), odd sizes elsewhere, so that swapped dimensions do not go
/// unnoticed.
inline ModelConfig small_config() {
  return ModelConfig({.vocab_size = 11,
                      .hidden_dim = 12,
                      .n_layers = 2,
                      .n_heads = 6,
                      .n_kv_heads = 3,
                      .intermediate_dim = 7});
}

/// The message of the exception of this type that `f` throws, or "no error".
template <typename Exception, typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
#define EXPECT_CONTAINS(text, part) \
  EXPECT_PRED2(::tinyllama::testing::contains, std::string(text), std::string(part))

/// Values of a float64 tensor, row by row.
inline std::vector<double> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous().view(-1);
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

inline void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                        double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], tolerance) << "at index " << i;
}

/// Checks the gradient of `f` (a float64 scalar) for every element of every leaf against central
/// differences.
inline void expect_gradients_by_differences(const std::function<at::Tensor()>& f,
                                            const NamedTensors& leaves) {
  for (const auto& [name, leaf] : leaves) leaf.mutable_grad().reset();
  f().backward();
  constexpr double step = 1e-5;
  for (const auto& [name, leaf] : leaves) {
    ASSERT_TRUE(leaf.grad().defined()) << name;
    const std::vector<double> gradient = values(leaf.grad());
    double* data = leaf.detach().data_ptr<double>();
    for (int64_t i = 0; i < leaf.numel(); ++i) {
      const double value = data[i];
      data[i] = value + step;
      const double above = f().item<double>();
      data[i] = value - step;
      const double below = f().item<double>();
      data[i] = value;
      EXPECT_NEAR(gradient[static_cast<size_t>(i)], (above - below) / (2 * step), 1e-7)
          << name << ", element " << i;
    }
  }
}

}  // namespace tinyllama::testing

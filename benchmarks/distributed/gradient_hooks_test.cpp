#include "benchmarks/distributed/gradient_hooks.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace tinyllama::distributed {
namespace {

NamedTensors two_parameters() {
  return {{"a", at::ones({2}).requires_grad_()}, {"b", at::ones({2}).requires_grad_()}};
}

TEST(GradientHooksTest, AGradientIsThereWhenItsHookRuns) {
  const NamedTensors parameters = two_parameters();
  std::vector<size_t> order;
  GradientHooks hooks(parameters, [&](size_t index) {
    EXPECT_TRUE(parameters[index].second.grad().defined());
    order.push_back(index);
  });
  hooks.attach();
  // b's gradient needs one operator less than a's.
  ((parameters[0].second * 2) * parameters[1].second).sum().backward();
  EXPECT_EQ(order, (std::vector<size_t>{1, 0}));
}

TEST(GradientHooksTest, DetachedHooksDoNotRun) {
  const NamedTensors parameters = two_parameters();
  int calls = 0;
  {
    GradientHooks hooks(parameters, [&](size_t) { ++calls; });
    parameters[0].second.sum().backward();
    hooks.attach();
    hooks.detach();
    parameters[0].second.sum().backward();
    hooks.attach();
  }
  parameters[0].second.sum().backward();
  EXPECT_EQ(calls, 0);
}

TEST(GradientHooksTest, WhatAHookThrowsLeavesTheBackward) {
  const NamedTensors parameters = two_parameters();
  GradientHooks hooks(parameters, [](size_t) { throw std::domain_error("from a hook"); });
  hooks.attach();
  EXPECT_THROW(parameters[0].second.sum().backward(), std::domain_error);
}

TEST(DenseValuesTest, AnyOrderOfDimensionsIsOneStretchOfMemory) {
  const at::Tensor matrix = at::ones({2, 3}).t();
  const at::Tensor flat = dense_values(matrix);
  EXPECT_EQ(flat.dim(), 1);
  EXPECT_EQ(flat.numel(), 6);
  EXPECT_EQ(flat.data_ptr(), matrix.data_ptr());
  EXPECT_THROW(dense_values(at::ones({4, 4}).narrow(1, 0, 2)), std::logic_error);
}

}  // namespace
}  // namespace tinyllama::distributed

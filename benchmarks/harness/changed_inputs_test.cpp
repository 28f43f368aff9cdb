#include "benchmarks/harness/changed_inputs.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace tinyllama::harness {
namespace {

// More elements than a narrow type can count.
TEST(ChangedInputsTest, AVectorIsScaledAlikeInEveryType) {
  const auto scaled = [](c10::ScalarType type) {
    at::Tensor vector = at::ones({3000}, type);
    scale_by_turns(vector);
    return vector.to(at::kDouble);
  };
  const at::Tensor exact = scaled(at::kDouble);
  EXPECT_EQ(exact[0].item<double>(), 0.5);
  EXPECT_EQ(exact[2999].item<double>(), 2);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    EXPECT_TRUE(at::equal(scaled(type), exact)) << c10::toString(type);
}

}  // namespace
}  // namespace tinyllama::harness

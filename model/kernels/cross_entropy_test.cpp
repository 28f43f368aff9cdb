#include "model/kernels/kernels.hpp"

#include <ATen/core/Reduction.h>

#include <limits>

#include "model/kernels/kernel_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

constexpr int64_t kIgnored = -100;

at::Tensor some_targets(int64_t rows, int64_t classes) {
  at::Tensor targets = at::randint(classes, {rows}, at::kLong);
  if (rows > 2) targets[rows / 2] = kIgnored;
  return targets;
}

TEST(CrossEntropyKernel, AgreesWithTheLibraryInFloat64) {
  for (const auto type : kTypes) {
    for (const auto& [rows, classes] :
         {std::pair{1, 1}, {3, 7}, {5, 12}, {4, 33}, {7, 1000}, {90, 1001}}) {
      at::Tensor logits = random({rows, classes}, type) * 4;
      const at::Tensor targets = some_targets(rows, classes);
      const at::Tensor logits64 = logits.to(kF64, false, /*copy=*/true).requires_grad_();
      const at::Tensor losses64 =
          at::cross_entropy_loss(logits64, targets, {}, at::Reduction::None, kIgnored);
      losses64.sum().backward();
      const at::Tensor before = logits.clone();
      const at::Tensor losses_alone = cross_entropy_losses(logits, targets, kIgnored);
      expect_same_bits(logits, before, "logits");
      const at::Tensor losses = cross_entropy_rows_(logits, targets, kIgnored);
      EXPECT_EQ(losses.scalar_type(), type == kF64 ? kF64 : kF32);
      // A loss is a difference of logarithms: a small one has the error of a large one.
      expect_close(losses, losses64, 4, "losses", /*at_least=*/1);
      expect_same_bits(losses, losses_alone, "losses alone");
      // In float64 the reference errs as well, by log p roundings: it takes exp of the logarithm of
      // p.
      expect_close(logits, logits64.grad(), type == kF64 ? 40 : 16, "gradient");
    }
  }
}

TEST(CrossEntropyKernel, IgnoredRowsAreZero) {
  for (const auto type : kTypes) {
    at::Tensor logits = random({4, 9}, type);
    const at::Tensor losses = cross_entropy_rows_(logits, at::full({4}, 7, at::kLong), 7);
    EXPECT_EQ(losses.abs().sum().item<double>(), 0);
    EXPECT_EQ(logits.abs().sum().item<double>(), 0);
  }
}

TEST(CrossEntropyKernel, LargeLogitsDoNotOverflow) {
  at::Tensor logits = at::tensor({1e30, -1e30, 0.0}).to(kF32).view({1, 3});
  const at::Tensor losses = cross_entropy_rows_(logits, at::zeros({1}, at::kLong), kIgnored);
  EXPECT_EQ(losses.item<float>(), 0);
  EXPECT_EQ(logits.abs().sum().item<float>(), 0);
}

TEST(CrossEntropyKernel, NanAndInfinityStayVisible) {
  for (const auto type : kTypes) {
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      for (const int64_t at : {0, 5, 16}) {
        at::Tensor logits = random({2, 17}, type);
        logits[1][at] = bad;
        const at::Tensor losses =
            cross_entropy_rows_(logits, at::full({2}, 3, at::kLong), kIgnored);
        EXPECT_FALSE(losses[0].isnan().item<bool>());
        EXPECT_TRUE(losses[1].isnan().item<bool>());
        EXPECT_FALSE(logits[0].isnan().any().item<bool>());
        EXPECT_TRUE(logits[1].isnan().any().item<bool>());
      }
    }
  }
}

TEST(CrossEntropyKernel, MinusInfinityHasProbabilityZero) {
  at::Tensor logits = random({1, 9}, kF32);
  logits[0][8] = -std::numeric_limits<double>::infinity();
  cross_entropy_rows_(logits, at::zeros({1}, at::kLong), kIgnored);
  EXPECT_EQ(logits[0][8].item<float>(), 0);
  EXPECT_NEAR(logits.sum().item<float>(), 0, 1e-6);
}

TEST(CrossEntropyKernel, TargetsOutOfRangeThrowAndChangeNothing) {
  for (const int64_t bad : {int64_t{-1}, int64_t{9}, int64_t{1} << 40}) {
    at::Tensor logits = random({2, 9}, kF32);
    const at::Tensor before = logits.clone();
    at::Tensor targets = at::zeros({2}, at::kLong);
    targets[1] = bad;
    EXPECT_THROW(cross_entropy_rows_(logits, targets, kIgnored), c10::IndexError);
    EXPECT_THROW(cross_entropy_losses(logits, targets, kIgnored), c10::IndexError);
    expect_same_bits(logits, before, "logits");
  }
}

TEST(CrossEntropyKernel, AutogradNoticesTheChange) {
  const at::Tensor x = random({2, 5}, kF32).requires_grad_();
  const at::Tensor squares = x * x;
  const at::Tensor product = squares * squares;  // keeps squares
  at::Tensor logits = squares.detach();
  cross_entropy_rows_(logits, at::zeros({2}, at::kLong), kIgnored);
  EXPECT_THROW(product.sum().backward(), c10::Error);
}

}  // namespace
}  // namespace tinyllama::kernels

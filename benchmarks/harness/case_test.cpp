#include "benchmarks/harness/case.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

// y = x * w with x = 3 and w = 5: the gradient of each is the other times the output gradient 2.
struct CountedGemm {
  explicit CountedGemm(Pass pass, bool is_loss = false)
      : work(Layer{{{"x", x}},
                   {{"w", w}},
                   [this, is_loss] {
                     ++forwards;
                     return NamedTensors{{"y", is_loss ? (x * w).sum() : x * w}};
                   },
                   is_loss ? std::vector<at::Tensor>{} : std::vector{at::full({4}, 2.0)}},
             pass, Dtype::f32, c10::kCPU) {}

  std::vector<std::string> result_names() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : work.results()) names.push_back(name);
    return names;
  }

  int forwards = 0;
  at::Tensor x = at::full({4}, 3.0).requires_grad_(true);
  at::Tensor w = at::full({4}, 5.0).requires_grad_(true);
  LayerWork work;
};

using Names = std::vector<std::string>;

double first(const at::Tensor& tensor) {
  return tensor.detach().view(-1)[0].item<double>();
}

TEST(LayerWorkTest, ForwardKeepsItsOutputsAndMakesNoGradients) {
  for (const Pass pass : {Pass::forward, Pass::forward_loss}) {
    CountedGemm gemm(pass);
    gemm.work.prepare();
    EXPECT_EQ(gemm.forwards, 0);
    gemm.work.run();
    EXPECT_EQ(gemm.forwards, 1);
    EXPECT_EQ(gemm.result_names(), Names({"y"}));
    EXPECT_EQ(first(gemm.work.results()[0].second), 15.0);
    EXPECT_FALSE(gemm.work.results()[0].second.requires_grad());
    EXPECT_FALSE(gemm.x.grad().defined());
  }
}

TEST(LayerWorkTest, TheForwardOfABackwardIsOutsideRun) {
  CountedGemm gemm(Pass::backward);
  for (int iteration = 1; iteration <= 2; ++iteration) {
    gemm.work.prepare();
    EXPECT_EQ(gemm.forwards, iteration);
    EXPECT_FALSE(gemm.x.grad().defined());
    gemm.work.run();
    EXPECT_EQ(gemm.forwards, iteration);
    EXPECT_EQ(first(gemm.x.grad()), 10.0);
    EXPECT_EQ(first(gemm.w.grad()), 6.0);
  }
}

TEST(LayerWorkTest, ForwardBackwardDoesBothInRun) {
  CountedGemm gemm(Pass::forward_backward);
  for (int iteration = 1; iteration <= 2; ++iteration) {
    gemm.work.prepare();
    EXPECT_EQ(gemm.forwards, iteration - 1);
    gemm.work.run();
    EXPECT_EQ(gemm.forwards, iteration);
    // The same in each iteration: nothing accumulates.
    EXPECT_EQ(first(gemm.x.grad()), 10.0);
  }
  EXPECT_EQ(gemm.result_names(), Names({"y", "gradient of x", "gradient of w"}));
  EXPECT_EQ(first(gemm.work.results()[2].second), 6.0);
}

TEST(LayerWorkTest, PrepareDropsOutputsAndGradientsWithTheirMemory) {
  CountedGemm gemm(Pass::forward_backward);
  gemm.work.prepare();
  const int64_t before = instruments::host_allocator::read().live_bytes;
  gemm.work.run();
  EXPECT_GT(instruments::host_allocator::read().live_bytes, before);
  gemm.work.prepare();
  EXPECT_EQ(instruments::host_allocator::read().live_bytes, before);
  for (const auto& [name, tensor] : gemm.work.results()) EXPECT_FALSE(tensor.defined()) << name;
}

TEST(LayerWorkTest, ALossStartsItsOwnBackward) {
  CountedGemm gemm(Pass::forward_backward, /*is_loss=*/true);
  gemm.work.prepare();
  gemm.work.run();
  EXPECT_EQ(first(gemm.work.results()[0].second), 60.0);
  EXPECT_EQ(first(gemm.x.grad()), 5.0);
}

TEST(LayerWorkTest, OnlyTheForwardRunsUnderAutocast) {
  const at::Tensor x = at::full({2, 2}, 1.0).requires_grad_(true);
  c10::ScalarType seen = c10::ScalarType::Undefined;
  LayerWork work(Layer{{{"x", x}},
                       {},
                       [&] {
                         const at::Tensor y = x.matmul(x);
                         seen = y.scalar_type();
                         return NamedTensors{{"y", y}};
                       },
                       {}},
                 Pass::forward, Dtype::amp_bf16, c10::kCPU);
  work.run();
  EXPECT_EQ(seen, c10::ScalarType::BFloat16);
  EXPECT_EQ(x.matmul(x).scalar_type(), c10::ScalarType::Float);
}

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

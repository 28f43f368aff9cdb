#include "model/step_gemms.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

namespace tinyllama {
namespace {

/// a [.., m, k] and b [.., k, n], as they are or as transposed views.
void expect_right(const GemmFunction& multiply, c10::ScalarType type, at::IntArrayRef batch,
                  bool transposed_a, bool transposed_b) {
  const auto matrix = [&](int64_t rows, int64_t columns, bool transposed) {
    std::vector<int64_t> sizes = batch.vec();
    sizes.insert(sizes.end(), {transposed ? columns : rows, transposed ? rows : columns});
    const at::Tensor numbers = at::randn(sizes).to(type);
    return transposed ? numbers.mT() : numbers;
  };
  const at::Tensor a = matrix(12, 28, transposed_a), b = matrix(28, 20, transposed_b);
  const at::Tensor exact = a.to(at::kDouble).matmul(b.to(at::kDouble));
  at::Tensor out = at::empty(exact.sizes(), a.options());
  const at::Tensor result = multiply(a, b, out);
  EXPECT_EQ(result.scalar_type(), type);
  const double tolerance = c10::elementSize(type) < sizeof(float) ? 0.02 : 1e-4;
  EXPECT_TRUE(result.to(at::kDouble).allclose(exact, tolerance, tolerance));
}

TEST(GemmPathsTest, EveryPathMultipliesInEveryLayout) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const bool batched : {false, true}) {
      for (const auto& [name, multiply] : gemm_paths(type, c10::DeviceType::CPU, batched)) {
        SCOPED_TRACE(name + " of " + c10::toString(type));
        const std::vector<int64_t> batch(batched ? 1 : 0, 3);
        expect_right(multiply, type, batch, false, false);
        expect_right(multiply, type, batch, false, true);
        expect_right(multiply, type, batch, true, false);
      }
    }
  }
}

TEST(GemmPathsTest, AreThoseOfTheLibraryAndOurOwn) {
  const auto names = [](c10::ScalarType type) {
    std::set<std::string> found;
    for (const auto& [name, multiply] : gemm_paths(type, c10::DeviceType::CPU)) found.insert(name);
    return found;
  };
  EXPECT_EQ(names(at::kDouble), (std::set<std::string>{"default BLAS", "tiled_gemm"}));
  EXPECT_TRUE(names(at::kBFloat16).contains("default BLAS in float32, rounded once"));
  EXPECT_EQ(gemm_paths(at::kHalf, c10::DeviceType::CUDA).count("at::linear"), 1U);
}

}  // namespace
}  // namespace tinyllama

#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "model/kernels/kernel_testing.hpp"
#include "model/kernels/kernels.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

struct Shape {
  int64_t m, n, k;
};

// Tiles are 4 or 8 rows and 4 to 32 columns. From {300, 104, 300} on, three are worth two
// threads: groups of several panels of rows, of one, and fewer groups than threads. The depth of
// 20000 is divided.
const std::vector<Shape> kShapes = {{1, 1, 1},
                                    {3, 5, 7},
                                    {8, 32, 16},
                                    {17, 33, 65},
                                    {64, 64, 64},
                                    {40, 100, 31},
                                    {300, 48, 20},
                                    {300, 104, 300},
                                    {70, 40, 20000},
                                    {20, 200, 3000},
                                    // computed as their transposes: leftover rows and columns
                                    {32, 256, 30},
                                    {40, 331, 32},
                                    {72, 152, 48}};

/// A transposed view has the same values.
at::Tensor transposed(const at::Tensor& x) {
  return x.t().contiguous().t();
}

TEST(GemmKernel, AgreesWithFloat64InEveryOrderOfElements) {
  for (const auto type : kTypes) {
    for (const auto& [m, n, k] : kShapes) {
      const at::Tensor a = random({m, k}, type), b = random({n, k}, type);
      const at::Tensor expected = a.to(kF64).matmul(b.to(kF64).t());
      const double units = type == kF64 || type == kF32 ? 8 + static_cast<double>(k) / 4 : 2;
      for (const at::Tensor& left : {a, transposed(a)}) {
        for (const at::Tensor& right : {b, transposed(b)}) {
          const at::Tensor out = gemm(left, right);
          EXPECT_EQ(out.scalar_type(), type);
          EXPECT_TRUE(out.is_contiguous());
          expect_close(out, expected, units, "a b^T");
          at::Tensor sum = random({m, n}, type == kF64 ? kF64 : kF32);
          const at::Tensor before = sum.to(kF64, /*non_blocking=*/false, /*copy=*/true);
          add_gemm_(sum, left, right);
          expect_close(sum, expected + before, 16 + static_cast<double>(k) / 4, "sum + a b^T");
        }
      }
    }
  }
}

TEST(GemmKernel, ReadsPartsOfALargerBuffer) {
  for (const auto type : kTypes) {
    const at::Tensor buffer = random({40, 99}, type);
    // Rows that begin where no pair does, and an odd number of elements away from each other.
    for (const int64_t first : {0, 1, 2}) {
      const at::Tensor part = buffer.narrow(1, first, 64);
      expect_same_bits(gemm(part, part), gemm(part.contiguous(), part.contiguous()), "rows");
      const at::Tensor columns = part.t();
      expect_same_bits(gemm(columns, columns), gemm(columns.contiguous(), columns.contiguous()),
                       "columns");
    }
    const at::Tensor every_second = buffer.as_strided({20, 30}, {198, 2});
    expect_same_bits(gemm(every_second, every_second),
                     gemm(every_second.contiguous(), every_second.contiguous()), "other strides");
  }
}

TEST(GemmKernel, NanStaysInItsRowAndColumn) {
  for (const auto type : kTypes) {
    const at::Tensor a = random({21, 40}, type), b = random({35, 40}, type);
    a.select(0, 20).fill_(std::numeric_limits<double>::quiet_NaN());
    b.select(0, 34).fill_(std::numeric_limits<double>::infinity());
    const at::Tensor out = gemm(a, b);
    EXPECT_TRUE(out.narrow(0, 0, 20).narrow(1, 0, 34).isfinite().all().item<bool>());
    EXPECT_TRUE(all_nan(out.select(0, 20)));
    EXPECT_FALSE(out.select(1, 34).isfinite().any().item<bool>());
  }
}

TEST(GemmKernel, OfNothingIsNothingOrZero) {
  EXPECT_EQ(gemm(random({0, 4}, kF32), random({3, 4}, kF32)).numel(), 0);
  EXPECT_EQ(gemm(random({2, 4}, kF32), random({0, 4}, kF32)).numel(), 0);
  EXPECT_TRUE(gemm(random({2, 0}, kF32), random({3, 0}, kF32)).equal(at::zeros({2, 3}, kF32)));
}

TEST(GemmKernel, RefusesWhatDoesNotFit) {
  const at::Tensor a = random({4, 8}, kF32);
  EXPECT_THROW(gemm(a, random({4, 7}, kF32)), c10::ValueError);
  EXPECT_THROW(gemm(a, random({4, 8}, kBf16)), c10::ValueError);
  EXPECT_THROW(gemm(a.view({2, 2, 8}), a), c10::ValueError);
  EXPECT_THROW(add_gemm_(random({4, 5}, kF32), a, a), c10::ValueError);
  EXPECT_THROW(add_gemm_(random({4, 4}, kF64), a, a), c10::ValueError);
  EXPECT_THROW(add_gemm_(random({4, 4}, kF32).t(), a, a), c10::ValueError);
}

}  // namespace
}  // namespace tinyllama::kernels

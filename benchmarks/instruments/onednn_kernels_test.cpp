#include "benchmarks/instruments/onednn_kernels.hpp"

#include <ATen/Context.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace tinyllama::instruments {
namespace {

TEST(OnednnKernelsTest, AreReadFromItsWordsMostTimeFirst) {
  const std::string verbose =
      "onednn_verbose,v1,info,oneDNN v3.7.1 (commit 8d263e6)\n"
      "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:bf16::blocked:ab,,,8x8,9.5\n"
      "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src,,,1,0.25\n"
      "onednn_verbose,v1,primitive,create:cache_miss,cpu,matmul,other:ref,undef,src,,,1,7\n"
      "onednn_verbose,exec,cpu,matmul,ref:any,undef,src,,,1,0.5\n"
      "step 3: loss 2.5, exec,cpu,matmul,ours,1,2\n"
      "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src,,,1,0.5\n"
      "onednn_verbose,v1,primitive,exec,cpu\n";
  EXPECT_EQ(onednn_kernels_in(verbose),
            (std::vector<std::string>{"matmul brg_matmul:avx512_core_bf16", "matmul ref:any"}));
  EXPECT_TRUE(onednn_kernels_in("").empty());
}

TEST(OnednnKernelsTest, AreThoseOfTheWorkAndOutputGoesOnAfterIt) {
  if (!at::hasMKLDNN()) GTEST_SKIP() << "this libtorch has no oneDNN";
  if (std::getenv("ONEDNN_VERBOSE") != nullptr) GTEST_SKIP() << "ONEDNN_VERBOSE is set";
  const at::Tensor matrix = at::ones({256, 256}, at::ScalarType::BFloat16);
  testing::internal::CaptureStdout();
  std::printf("before\n");
  EXPECT_THROW(onednn_kernels([&] {
                 at::mm(matrix, matrix);
                 throw std::runtime_error("of the work");
               }),
               std::runtime_error);
  const auto kernels = onednn_kernels([&] { at::mm(matrix, matrix); });
  at::mm(matrix, matrix);
  std::printf("after\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "before\nafter\n");
  // Without instructions for bfloat16 libtorch may not ask oneDNN at all.
  for (const std::string& kernel : kernels) EXPECT_TRUE(kernel.starts_with("matmul ")) << kernel;
  EXPECT_LE(kernels.size(), 1u);
  EXPECT_TRUE(onednn_kernels([] {}).empty());
}

}  // namespace
}  // namespace tinyllama::instruments

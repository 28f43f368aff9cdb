#include "benchmarks/instruments/operator_profile.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace tinyllama::instruments {
namespace {

TEST(OperatorCountTest, CountsThoseOfOthersOfOtherThreadsAndOfTheBackward) {
  at::Tensor a = at::ones({4, 4}), b = at::ones({4, 4});
  EXPECT_EQ(count_operators([] {}), 0);
  EXPECT_EQ(count_operators([&] { a.add(b).mul(b).neg(); }), 3);
  // matmul of two matrices is mm and itself.
  const int64_t of_mm = count_operators([&] { a.mm(b); });
  EXPECT_EQ(count_operators([&] { a.matmul(b); }), of_mm + 1);
  EXPECT_EQ(count_operators([&] { std::thread([&] { a.add(b); }).join(); }), 1);
  EXPECT_THROW(count_operators([] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(count_operators([&] { a.add(b); }), 1);
  a.requires_grad_(true);
  const int64_t forward = count_operators([&] { a.mul(b).sum(); });
  EXPECT_GT(count_operators([&] { a.mul(b).sum().backward(); }), forward);
}

class OperatorProfileTest : public ::testing::Test {
 protected:
  static at::Tensor ones(at::IntArrayRef shape) { return at::ones(shape).requires_grad_(true); }
  OperatorProfile profile(const std::function<void()>& work) const {
    return profile_operators(device_, work);
  }
  const Device device_ = Device::select("cpu");
};

TEST_F(OperatorProfileTest, CountsTheGemmsOfBothPassesAndNothingElse) {
  const at::Tensor a = ones({3, 5}), b = ones({5, 7}), batch = ones({2, 3, 5});
  const at::Tensor q = ones({1, 2, 8, 16}), table = ones({16, 8}),
                   tokens = at::arange(4096).remainder(16);
  const auto autocast_bmm = [&] {
    at::autocast::set_autocast_enabled(c10::DeviceType::CPU, true);
    batch.bmm(batch.transpose(1, 2));
    at::autocast::set_autocast_enabled(c10::DeviceType::CPU, false);
  };
  const std::pair<std::function<void()>, int64_t> cases[] = {
      {[] {}, 0},
      {[&] { a.mm(b); }, 2 * 3 * 5 * 7},
      {[&] { batch.matmul(b); }, 2 * 2 * 3 * 5 * 7},
      {[&] { batch.bmm(batch.transpose(1, 2)); }, 2 * 2 * 3 * 5 * 3},
      {autocast_bmm, 2 * 2 * 3 * 5 * 3},
      {[&] { a.mm(b).sum().backward(); }, 3 * 2 * 3 * 5 * 7},
      {[&] { a.detach().mm(b).sum().backward(); }, 2 * 2 * 3 * 5 * 7},
      {[&] { (a * a + a).exp().sum().backward(); }, 0},
      // Attention's kernels are left to the formulas.
      {[&] { at::scaled_dot_product_attention(q, q, q).sum().backward(); }, 0},
      // Of more tokens than a GPU adds up one by one.
      {[&] { at::embedding(table, tokens).sum().backward(); }, 0}};
  for (const auto& [work, flops] : cases) {
    const OperatorProfile counted = profile(work);
    EXPECT_EQ(counted.gemm_flops, flops);
    EXPECT_EQ(counted.unknown_operators, std::vector<std::string>());
    EXPECT_FALSE(counted.kernels.has_value()) << "of a CPU";
  }
}

TEST_F(OperatorProfileTest, NamesOperatorsThatItDoesNotKnow) {
  const at::Tensor signal = ones({1, 2, 8}), kernel = ones({3, 2, 5});
  const auto unknown = profile([&] { at::conv1d(signal, kernel); }).unknown_operators;
  EXPECT_NE(std::ranges::find(unknown, "aten::convolution"), unknown.end())
      << ::testing::PrintToString(unknown);
}

TEST(OperatorNamesTest, AttentionBackendsAndGemmsAreKnownByName) {
  for (const auto& [name, backend] :
       {std::pair{"aten::_scaled_dot_product_flash_attention_backward", "flash"},
        {"aten::_scaled_dot_product_flash_attention_for_cpu", "flash"},
        {"aten::_scaled_dot_product_efficient_attention", "efficient"},
        {"aten::_scaled_dot_product_cudnn_attention", "cudnn"},
        {"aten::_scaled_dot_product_attention_math", "math"},
        {"aten::scaled_dot_product_attention", ""}})
    EXPECT_EQ(attention_backend_of(name), backend) << name;
  for (const char* name :
       {"aten::_scaled_mm", "aten::_grouped_mm", "aten::einsum", "aten::convolution"})
    EXPECT_TRUE(is_gemm_like(name)) << name;
  for (const char* name : {"aten::cumsum", "aten::sort", "aten::arange"})
    EXPECT_FALSE(is_gemm_like(name)) << name;
}

TEST_F(OperatorProfileTest, EndsTheProfilerWhenTheWorkThrows) {
  EXPECT_THROW(profile([] { throw std::runtime_error("no"); }), std::runtime_error);
  const at::Tensor a = ones({3, 5});
  EXPECT_EQ(profile([&] { a.mm(a.t()); }).gemm_flops, 2 * 3 * 5 * 3);
}

TEST(SeenWorkTest, KernelsThatWereNotSeenAreUnknownAndNotZero) {
  struct Recorded {
    SeenWork seen;
    std::string lack;
  };
  for (const auto& [seen, lack] :
       {Recorded{{.launches = 3, .kernels = 3, .seconds = 1e-3}, ""},
        Recorded{{.launches = 1, .kernels = 40, .seconds = 1e-3}, ""},  // a graph's
        Recorded{{.launches = 0, .kernels = 2, .seconds = 1e-3}, ""},   // by the driver's own calls
        Recorded{{}, "the profiler saw 0 kernels of 0 launches"},
        Recorded{{.launches = 1}, "the profiler saw 0 kernels of 1 launches"},
        Recorded{{.launches = 9, .kernels = 8, .seconds = 1e-3},
                 "the profiler saw 8 kernels of 9 launches"}}) {
    EXPECT_EQ(seen.lack(), lack);
    OperatorProfile profile;
    keep(seen, profile);
    EXPECT_EQ(profile.kernels.has_value(), lack.empty());
    EXPECT_EQ(profile.device_seconds.has_value(), lack.empty());
    EXPECT_EQ(profile.lack, lack);
  }
}

TEST(SeenWorkTest, LaunchesAreKnownByTheNamesOfBothRuntimes) {
  for (const char* name : {"cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel",
                           "cudaGraphLaunch", "hipLaunchKernel", "hipExtModuleLaunchKernel",
                           "hipModuleLaunchKernel", "hipGraphLaunch", "hipExtLaunchKernel"})
    EXPECT_TRUE(is_launch(name)) << name;
  for (const char* name : {"cudaMemcpyAsync", "hipLaunchHostFunc", "cudaGraphInstantiate",
                           "hipGetLastError", "cudaFuncGetAttributes"})
    EXPECT_FALSE(is_launch(name)) << name;
}

TEST_F(OperatorProfileTest, CountsKernelsOfAGpu) {
  const Device device = Device::select("auto");
  if (!device.is_gpu()) GTEST_SKIP() << "no GPU";
  const at::Tensor on_device = at::ones({4, 4}).to(device.torch());
  EXPECT_EQ(profile_operators(device, [&] { on_device.add(on_device); }).kernels, 1);
}

}  // namespace
}  // namespace tinyllama::instruments

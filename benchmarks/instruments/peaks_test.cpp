#include "benchmarks/instruments/peaks.hpp"

#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "benchmarks/instruments/gemm_paths.hpp"

namespace tinyllama::instruments {
namespace {

TEST(GemmPeakTest, EveryTypeHasAPeakWithinATinyBudget) {
  const Device device = Device::select("auto");
  for (const char* type : {"f64", "f32", "bf16", "f16"}) {
    const MeasuredPeak peak = measure_gemm_peak(device, type, {{64, 96, 32}}, 0.02);
    EXPECT_GT(peak.per_second, 0) << type;
    EXPECT_FALSE(peak.source.empty()) << type;
  }
}

TEST(GemmPeakTest, UnknownTypeIsNamed) {
  try {
    measure_gemm_peak(Device::select("cpu"), "tf32", {}, 0.1);
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("\"tf32\""), std::string::npos) << error.what();
  }
}

TEST(GemmPeakTest, EveryPathMultiplies) {
  const Device device = Device::select("cpu");
  GemmOperandPool pool(device.torch(), at::kFloat);
  for (const GemmPath& path : usable_gemm_paths(device, at::kFloat)) {
    for (const GemmLayout layout : {GemmLayout::a_b, GemmLayout::a_bt, GemmLayout::at_b}) {
      const GemmOperands operands = pool.get({48, 80, 112}, layout);
      ASSERT_EQ(operands.a.sizes(), (at::IntArrayRef{48, 112}));
      ASSERT_EQ(operands.b.sizes(), (at::IntArrayRef{112, 80}));
      const at::Tensor exact = operands.a.to(at::kDouble).mm(operands.b.to(at::kDouble));
      EXPECT_TRUE(path.multiply(operands).to(at::kDouble).allclose(exact, 1e-4, 1e-4))
          << path.name << ", " << to_string(layout);
    }
  }
}

TEST(GemmPeakTest, DoesNotDisturbTheGlobalRandomNumbers) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(7);
  const at::Tensor expected = at::rand({4});
  generator.set_current_seed(7);
  measure_gemm_peak(Device::select("cpu"), "f32", {}, 0.01);
  EXPECT_TRUE(at::rand({4}).equal(expected));
}

TEST(BandwidthTest, MemoryAndCacheArePositiveWithASource) {
  const Bandwidth bandwidth = measure_bandwidth(Device::select("auto"));
  EXPECT_GT(bandwidth.memory.per_second, 0);
  EXPECT_GT(bandwidth.cache.per_second, 0);
  EXPECT_FALSE(bandwidth.memory.source.empty());
  EXPECT_FALSE(bandwidth.cache.source.empty());
}

}  // namespace
}  // namespace tinyllama::instruments

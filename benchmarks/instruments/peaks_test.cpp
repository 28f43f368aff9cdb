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
      const GemmOperands operands = pool.get(GemmShape{48, 80, 112}, layout);
      ASSERT_EQ(operands.a.sizes(), (at::IntArrayRef{48, 112}));
      ASSERT_EQ(operands.b.sizes(), (at::IntArrayRef{112, 80}));
      const at::Tensor exact = operands.a.to(at::kDouble).mm(operands.b.to(at::kDouble));
      EXPECT_TRUE(path.multiply(operands).to(at::kDouble).allclose(exact, 1e-4, 1e-4))
          << path.name << ", " << to_string(layout);
    }
  }
}

TEST(GemmPeakTest, ManyProductsAtOnceMultiply) {
  const Device device = Device::select("cpu");
  GemmOperandPool pool(device.torch(), at::kFloat);
  for (const GemmLayout layout : kGemmLayouts) {
    const GemmOperands operands = pool.get(BatchedGemmShape{3, {12, 20, 28}}, layout);
    ASSERT_EQ(operands.a.sizes(), (at::IntArrayRef{3, 12, 28}));
    ASSERT_EQ(operands.b.sizes(), (at::IntArrayRef{3, 28, 20}));
    const at::Tensor exact = operands.a.to(at::kDouble).bmm(operands.b.to(at::kDouble));
    for (const GemmPath& path : usable_batched_gemm_paths(device, at::kFloat)) {
      EXPECT_TRUE(path.multiply(operands).to(at::kDouble).allclose(exact, 1e-4, 1e-4))
          << path.name << ", " << to_string(layout);
    }
    EXPECT_FALSE(operands.a[0].equal(operands.a[1])) << "each product has numbers of its own";
  }
}

TEST(ProductRateTest, OneShapeAndManyAtOnce) {
  const Device device = Device::select("auto");
  const MeasuredPeak one = measure_product(device, "f32", {1, {64, 96, 32}}, 0.005);
  EXPECT_GT(one.per_second, 0);
  EXPECT_NE(one.source.find("64x96x32"), std::string::npos) << one.source;
  const MeasuredPeak many = measure_product(device, "f32", {8, {64, 96, 32}}, 0.005);
  EXPECT_GT(many.per_second, 0);
  EXPECT_NE(many.source.find("at::bmm, 8x64x96x32"), std::string::npos) << many.source;
  EXPECT_EQ((BatchedGemmShape{8, {64, 96, 32}}.flops()), 8 * 2 * 64 * 96 * 32);
}

TEST(ProductRateTest, WhatDoesNotFitIsRefused) {
  const Device device = Device::select("cpu");
  EXPECT_EQ(refuse_product(device, "f32", {1, {64, 96, 32}}), "");
  const std::string refused = refuse_product(device, "f32", {1 << 20, {4096, 4096, 64}});
  EXPECT_NE(refused.find("1048576x4096x4096x64"), std::string::npos) << refused;
  EXPECT_NE(refused.find("more than half"), std::string::npos) << refused;
}

TEST(ProductRateTest, UnknownTypeIsNamed) {
  EXPECT_THROW(measure_product(Device::select("cpu"), "tf32", {1, {8, 8, 8}}, 0.001),
               std::invalid_argument);
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

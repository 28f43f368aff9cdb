#include "benchmarks/harness/counters.hpp"

#include <gtest/gtest.h>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

class CountersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // 4 TFLOP/s of products, 10 GB/s of memory, 40 GB/s of cache.
    peaks.restore(testing::made_up_peaks(4e12, 10e9, 40e9));
    component.memory = [](const Workload&, Pass) { return MemoryCost{.weights = 3 << 20}; };
  }
  void set_cost(const Cost& cost) {
    component.cost = [cost](const Workload&, Pass) { return cost; };
  }
  int64_t cache_bytes() const { return cpu.description().last_level_cache_bytes; }
  double smallest_level_bandwidth() const { return cache_bytes() > 0 ? 40e9 : 10e9; }

  instruments::Device cpu = instruments::Device::select("cpu");
  PeakBook peaks{cpu};
  Component component = testing::linear_component();
  // 6 samples of 4 tokens.
  Case planned = testing::small_case(component, Pass::forward, Dtype::bf16, 6);
};

TEST_F(CountersTest, RatesByHand) {
  set_cost({.model_flops = 2'000'000'000, .bytes = 1000, .useful_flops = 2'000'000'000});
  const Counters counters = rate_counters(planned, 0.002, peaks);
  EXPECT_DOUBLE_EQ(counters.at("samples_per_second"), 3000);
  EXPECT_DOUBLE_EQ(counters.at("tokens_per_second"), 12000);
  EXPECT_DOUBLE_EQ(counters.at("GB_per_second"), 0.0005);
  EXPECT_DOUBLE_EQ(counters.at("TFLOPS"), 1.0);
  EXPECT_DOUBLE_EQ(counters.at("peak_percent"), 25.0);
  // No datasheet: MFU is against the measured peak.
  EXPECT_DOUBLE_EQ(counters.at("MFU_percent"), 25.0);
}

TEST_F(CountersTest, MfuIsAgainstTheDatasheetWhereItKnowsTheType) {
  set_cost({.model_flops = 2'000'000'000, .bytes = 1000, .useful_flops = 2'000'000'000});
  instruments::DatasheetPeaks datasheet;
  datasheet.flops = {{"bf16", 10e12}};
  peaks.set_datasheet(datasheet);
  EXPECT_DOUBLE_EQ(rate_counters(planned, 0.002, peaks).at("MFU_percent"), 10.0);
  EXPECT_DOUBLE_EQ(rate_counters(planned, 0.002, peaks).at("peak_percent"), 25.0);
  planned.workload.dtype = Dtype::f32;
  EXPECT_DOUBLE_EQ(rate_counters(planned, 0.002, peaks).at("MFU_percent"), 25.0);
}

TEST_F(CountersTest, RatesCountNoProductsThatTheVariantLeavesOut) {
  set_cost({.model_flops = 2'000'000'000, .bytes = 1000, .useful_flops = 1'000'000'000});
  EXPECT_DOUBLE_EQ(rate_counters(planned, 0.002, peaks).at("TFLOPS"), 0.5);
  EXPECT_DOUBLE_EQ(rate_counters(planned, 0.002, peaks).at("peak_percent"), 12.5);
}

TEST_F(CountersTest, RoofOfACaseBoundByProducts) {
  // 1 ms of products, far less of traffic.
  set_cost({.model_flops = 4'000'000'000, .bytes = 1000, .useful_flops = 4'000'000'000});
  EXPECT_DOUBLE_EQ(rate_counters(planned, 0.002, peaks).at("roof_percent"), 50.0);
}

TEST_F(CountersTest, RoofOfACaseBoundByBandwidth) {
  // Much more than any cache: 100 GB in 10 s; its products would take 1 ms.
  const int64_t bytes = 100'000'000'000;
  set_cost({.model_flops = 4'000'000'000, .bytes = bytes});
  const Counters counters = rate_counters(planned, 40.0, peaks);
  // The cache serves at most its own size, at four times memory's bandwidth.
  const double cached = 2 * static_cast<double>(cache_bytes());
  const double least = (100e9 - cached) / 10e9 + cached / 40e9;
  EXPECT_DOUBLE_EQ(counters.at("roof_percent"), 100 * least / 40);
  EXPECT_DOUBLE_EQ(counters.at("GB_per_second"), 2.5);
}

TEST_F(CountersTest, ACachedWorkingSetIsHeldAgainstTheCache) {
  set_cost({.bytes = 40'000});
  const double seconds = 40'000 / smallest_level_bandwidth();
  EXPECT_DOUBLE_EQ(rate_counters(planned, seconds, peaks).at("roof_percent"), 100.0);
  if (cache_bytes() == 0) GTEST_SKIP() << "the last-level cache is unknown here";
  EXPECT_DOUBLE_EQ(peaks.bandwidth(cache_bytes()), 40e9);
  EXPECT_DOUBLE_EQ(peaks.bandwidth(4 * cache_bytes()), 2 / (1 / 10e9 + 1 / 40e9));
}

TEST_F(CountersTest, NoFlopRatesWithoutProducts) {
  set_cost({.elementwise_flops = 5000, .bytes = 1000});
  const Counters counters = rate_counters(planned, 0.5, peaks);
  for (const char* name : {"TFLOPS", "MFU_percent", "peak_percent"})
    EXPECT_FALSE(counters.contains(name)) << name;
  EXPECT_TRUE(counters.contains("roof_percent"));
  EXPECT_TRUE(counters.contains("GB_per_second"));
}

TEST_F(CountersTest, FixedCounters) {
  set_cost({.parameters = 7,
            .model_flops = 600,
            .causal_flops = 500,
            .hardware_flops = 700,
            .elementwise_flops = 80,
            .bytes = 200,
            .lookup_flops = 900,
            .opaque_flops = 100,
            .useful_flops = 550});
  const Counters expected = {
      {"parameters", 7},       {"model_flops", 600},      {"causal_flops", 500},
      {"hardware_flops", 700}, {"elementwise_flops", 80}, {"bytes", 200},
      {"flop_per_byte", 3},    {"peak_memory_MiB", 1.5},  {"predicted_memory_MiB", 3},
      {"allocations", 11},     {"operators", 22},         {"counted_flops", 650},
      {"lookup_flops", 900},   {"opaque_flops", 100},     {"useful_flops", 550}};
  EXPECT_EQ(fixed_counters(planned, {3 << 19, 11, 22, {650, {}, {}}}), expected);
}

TEST_F(CountersTest, IntensityWithoutProductsIsElementwise) {
  set_cost({.elementwise_flops = 80, .bytes = 200});
  const Counters counters = fixed_counters(planned, {0, 0, 0, {0, {}, 33}});
  EXPECT_DOUBLE_EQ(counters.at("flop_per_byte"), 0.4);
  EXPECT_DOUBLE_EQ(counters.at("kernels"), 33);
}

TEST_F(CountersTest, PeaksSurviveAJournal) {
  PeakBook restored(cpu);
  EXPECT_FALSE(restored.has({"f32"}));
  restored.restore(nlohmann::ordered_json::parse(peaks.to_json().dump()));
  EXPECT_TRUE(restored.has({"f32", "bf16"}));
  EXPECT_FALSE(restored.has({"f16"}));
  EXPECT_EQ(restored.to_json(), peaks.to_json());
}

TEST_F(CountersTest, ARaisedPeakKeepsTheOneItSupersedes) {
  peaks.raise("f32", 5e12, "reached by a case");
  EXPECT_DOUBLE_EQ(peaks.measured_flops("f32"), 5e12);
  EXPECT_DOUBLE_EQ(peaks.measured_flops("bf16"), 4e12);
  const nlohmann::ordered_json superseded = peaks.to_json().at("superseded");
  ASSERT_EQ(superseded.size(), 1U);
  EXPECT_EQ(superseded[0].at("type"), "f32");
  EXPECT_EQ(superseded[0].at("flops_per_second"), 4e12);
}

}  // namespace
}  // namespace tinyllama::harness

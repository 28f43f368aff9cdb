#include "benchmarks/instruments/peaks.hpp"

#include <ATen/Context.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return a.dim() == 3 ? at::bmm_out(out, a, b) : at::mm_out(out, a, b);
}

at::Tensor refuse(const at::Tensor&, const at::Tensor&, at::Tensor&) {
  throw std::runtime_error("no such type here");
}

at::Tensor multiply_in_bf16(const at::Tensor& a, const at::Tensor& b, at::Tensor&) {
  return a.to(at::kBFloat16).matmul(b.to(at::kBFloat16)).to(a.scalar_type());
}

const GemmPaths only_default = {{"the default", multiply}};

TEST(GemmPeakTest, EveryTypeHasAPeakWithinATinyBudgetAndSoHaveOneShapeAndManyAtOnce) {
  const Device device = Device::select("auto");
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const MeasuredPeak peak =
        measure_gemm_peak(device, type, only_default, {{1, 64, 96, 32}}, 0.02);
    EXPECT_GT(peak.per_second, 0) << type;
    testing::expect_mentions(peak.source, {"the default, "});
  }
  for (const int64_t batch : {1, 8}) {
    const GemmShape shape{batch, 64, 96, 32};
    const MeasuredPeak peak = measure_gemm(device, at::kFloat, only_default, shape, 0.005);
    EXPECT_GT(peak.per_second, 0);
    testing::expect_mentions(peak.source,
                             {batch == 1 ? "default, 64x96x32" : "default, 8x64x96x32"});
    EXPECT_EQ(shape.flops(), batch * 2 * 64 * 96 * 32);
  }
}

TEST(GemmPeakTest, ALinearLayerIsMultipliedForwardAndForBothGradients) {
  // Of float64, which is not checked, at the same time whatever the size: what starting a kernel is
  // on a GPU.
  std::set<std::vector<int64_t>> seen;
  const auto note = [&](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
    EXPECT_EQ(out.sizes(), (at::IntArrayRef{a.size(0), b.size(1)}));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // The strides tell which of a and b is transposed.
    seen.insert({a.size(0), b.size(1), a.size(1), a.stride(1), b.stride(1)});
    return out;
  };
  const Device cpu = Device::select("cpu");
  measure_gemm_peak(cpu, at::kDouble, {{"noted", note}}, {{1, 48, 80, 112}}, 5);
  EXPECT_TRUE(seen.contains({48, 80, 112, 1, 112})) << "x W^T";
  EXPECT_TRUE(seen.contains({48, 112, 80, 1, 1})) << "G W";
  EXPECT_TRUE(seen.contains({80, 112, 48, 80, 1})) << "G^T x";
  EXPECT_TRUE(seen.contains({1024, 1024, 1024, 1, 1024})) << "large squares in each layout";
  EXPECT_TRUE(seen.contains({1024, 1024, 1024, 1024, 1})) << "large squares in each layout";
}

TEST(GemmPeakTest, WhatRefusesOrIsNoTrueFloat32IsLeftOut) {
  const Device device = Device::select("cpu");
  const GemmPaths paths = {{"bf16", multiply_in_bf16}, {"good", multiply}, {"refusing", refuse}};
  testing::expect_mentions(measure_gemm_peak(device, at::kFloat, paths, {}, 0.01).source,
                           {"good, "});
  testing::expect_mentions(measure_gemm(device, at::kFloat, paths, {1, 64, 96, 32}, 0.001).source,
                           {"good, 64x96x32, A"});
  const GemmPaths bad = {{"bf16", multiply_in_bf16}, {"refusing", refuse}};
  testing::expect_mentions(
      testing::error_of([&] { measure_gemm_peak(device, at::kFloat, bad, {}, 0.01); }),
      {"no library multiplies Float matrices", "bf16: relative error", "not true float32",
       "refusing: no such type here"});
}

TEST(GemmPeakTest, TheDefaultLibrarysRateIsKnownWhereItIsHopelessAsAPeak) {
  const auto slow = [](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return multiply(a, b, out);
  };
  const Device device = Device::select("cpu");
  const GemmShape shape{1, 64, 96, 32};
  const MeasuredPeak peak =
      measure_gemm(device, at::kFloat, {{kDefaultPath, slow}, {"good", multiply}}, shape, 0.001);
  testing::expect_mentions(peak.source, {"good, "});
  EXPECT_GT(peak.default_per_second, 0);
  EXPECT_LE(peak.default_per_second, static_cast<double>(shape.flops()) / 5e-3);
  EXPECT_EQ(measure_gemm(device, at::kFloat, only_default, shape, 0.001).default_per_second, 0);
}

TEST(GemmPeakTest, OperandsAreRandomNumbersOfTheirOwnThatDisturbNoOthers) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_current_seed(7);
  const at::Tensor expected = at::rand({4});
  generator.set_current_seed(7);
  const auto compare = [](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
    EXPECT_FALSE(a[0].equal(a[1]));
    return multiply(a, b, out);
  };
  measure_gemm(Device::select("cpu"), at::kFloat, {{"compared", compare}}, {3, 12, 20, 28}, 0.001);
  EXPECT_TRUE(at::rand({4}).equal(expected));
}

TEST(GemmPeakTest, WhatDoesNotFitIsRefused) {
  const Device device = Device::select("cpu");
  EXPECT_EQ(refuse_gemm(device, at::kFloat, {1, 64, 96, 32}), "");
  testing::expect_mentions(refuse_gemm(device, at::kFloat, {1 << 20, 4096, 4096, 64}),
                           {"1048576x4096x4096x64", "more than half"});
}

TEST(MeasuredPeaksTest, APeakBelowWhatWasReachedIsMeasuredAgain) {
  MeasuredPeaks peaks(Device::select("cpu"));
  peaks.raise("f32", 1.0, "made up");
  peaks.measure_flops_below("f32", 0.5);
  EXPECT_EQ(peaks.measured_flops("f32"), 1.0) << "it is above";
  peaks.measure_flops_below("f32", 2.0);
  EXPECT_GT(peaks.measured_flops("f32"), 1e6);
}

constexpr int64_t kMiB = 1 << 20;

/// Of a machine whose second level holds 1 MiB, and its last level 32.
double synthetic_rate(int64_t bytes) {
  if (bytes <= kMiB) return 80e9;
  return bytes <= 32 * kMiB ? 20e9 : 10e9;
}

Bandwidth synthetic_curve(int64_t traffic = kTrafficOfMemory) {
  Bandwidth bandwidth;
  const CurveRange range{false, 2, 32 * kMiB, int64_t{64} << 30};
  for (const int64_t bytes : curve_sizes(range, traffic))
    bandwidth.curve[bytes] = {synthetic_rate(bytes), "made up"};
  if (traffic == kTrafficOfMemory) bandwidth.memory = bandwidth.curve.rbegin()->second;
  return bandwidth;
}

TEST(BandwidthTest, TrafficIsHeldAgainstTheLevelThatItReachesAndNoFasterOne) {
  const Bandwidth bandwidth = synthetic_curve();
  EXPECT_DOUBLE_EQ(attainable_bandwidth(bandwidth, 1), 80e9);
  EXPECT_DOUBLE_EQ(attainable_bandwidth(bandwidth, kMiB), 80e9);
  EXPECT_DOUBLE_EQ(attainable_bandwidth(bandwidth, 24 * kMiB), 20e9) << "not the second level's";
  EXPECT_DOUBLE_EQ(attainable_bandwidth(bandwidth, 64 * kMiB), 10e9);
  EXPECT_DOUBLE_EQ(attainable_bandwidth(bandwidth, int64_t{1} << 50), 10e9);
}

TEST(BandwidthTest, BetweenTwoSizesItFallsEvenlyInTheLogarithms) {
  Bandwidth bandwidth = synthetic_curve();
  // half way from 1 to 2 MiB, by factors
  EXPECT_NEAR(attainable_bandwidth(bandwidth, 1482910), 40e9, 1e5);
  double before = 1e12;
  for (int64_t bytes = 1000; bytes < 512 * kMiB; bytes += bytes / 7) {
    const double now = attainable_bandwidth(bandwidth, bytes);
    EXPECT_LE(now, before) << bytes;
    EXPECT_GE(now, synthetic_rate(std::bit_ceil(static_cast<uint64_t>(bytes)))) << bytes;
    before = now;
  }
  // A disturbed size is no less than what more traffic reaches.
  bandwidth.curve[4 * kMiB].per_second = 1e9;
  EXPECT_DOUBLE_EQ(attainable_bandwidth(bandwidth, 4 * kMiB), 20e9);
  EXPECT_DOUBLE_EQ(attainable_bandwidth(bandwidth, 3 * kMiB), 20e9);
  EXPECT_DOUBLE_EQ(attainable_bandwidth({}, 7), 0);
}

TEST(BandwidthTest, SizesArePowersOfTwoAsFarAsTheTrafficGoes) {
  const int64_t free = int64_t{64} << 30;
  const auto sizes = [&](CurveRange range, int64_t traffic) { return curve_sizes(range, traffic); };
  const auto all = sizes({false, 2, 32 * kMiB, free}, kTrafficOfMemory);
  EXPECT_EQ(all.front(), kMiB / 8);
  EXPECT_EQ(all.back(), 128 * kMiB) << "four times the last level";
  for (size_t i = 1; i < all.size(); ++i) EXPECT_EQ(all[i], 2 * all[i - 1]);
  const auto some = sizes({false, 2, 32 * kMiB, free}, 5 * kMiB);
  EXPECT_EQ(some, std::vector<int64_t>(all.begin(), all.begin() + 7)) << "to 8 MiB";
  EXPECT_EQ(sizes({false, 2, 33 * kMiB, free}, kTrafficOfMemory).back(), 256 * kMiB);
  EXPECT_EQ(sizes({false, 2, 0, free}, kTrafficOfMemory).back(), 256 * kMiB) << "unknown cache";
  EXPECT_EQ(sizes({true, 2, 4 * kMiB, free}, kTrafficOfMemory).back(), 2048 * kMiB);
  EXPECT_EQ(sizes({false, 2, 32 * kMiB, 256 * kMiB}, kTrafficOfMemory).back(), 64 * kMiB);
  EXPECT_EQ(sizes({false, 96, 32 * kMiB, free}, 1), std::vector<int64_t>{8 * kMiB});
  EXPECT_EQ(synthetic_curve(kMiB).memory.per_second, 0);
}

TEST(BandwidthTest, EverySizeIsMeasuredWithItsSource) {
  const Device device = Device::select("auto");
  const Bandwidth bandwidth = measure_bandwidth(device);
  double best = 0;
  for (const auto& [bytes, peak] : bandwidth.curve) {
    EXPECT_GT(peak.per_second, 0) << bytes;
    EXPECT_FALSE(peak.source.empty()) << bytes;
    best = std::max(best, peak.per_second);
  }
  EXPECT_GE(bandwidth.curve.rbegin()->first, 4 * device.description().last_level_cache_bytes);
  EXPECT_DOUBLE_EQ(bandwidth.memory.per_second, bandwidth.curve.rbegin()->second.per_second);
  EXPECT_LE(bandwidth.memory.per_second, 1.05 * best);
  EXPECT_EQ(measure_bandwidth(device, 1).curve.size(), 1U);
  EXPECT_EQ(measure_bandwidth(device, 1).memory.per_second, 0);
}

const std::filesystem::path real_file =
    std::filesystem::path(TINY_LLAMA_SOURCE_DIR) / "fixtures" / "device_peaks.json";

std::optional<DatasheetPeaks> find(const std::string& name, int multiprocessors = 0) {
  DeviceDescription description;
  description.name = name;
  description.multiprocessors = multiprocessors;
  return find_datasheet_peaks(real_file, description);
}

TEST(DatasheetPeaksTest, NamesAsTheRuntimesReportThem) {
  struct Named {
    const char* name;
    int multiprocessors;  ///< 0: the runtime does not tell
    const char* device;
  };
  const Named devices[] = {
      {"AMD Instinct MI250X", 110, "AMD Instinct MI250X (one GCD)"},
      {"MI250X/MI250", 110, "AMD Instinct MI250X (one GCD)"},
      {"AMD Instinct MI250X / MI250", 110, "AMD Instinct MI250X (one GCD)"},
      {"AMD Instinct MI300X OAM", 304, "AMD Instinct MI300X"},
      {"AMD Instinct MI325X", 0, "AMD Instinct MI325X"},
      {"AMD Instinct MI355X", 256, "AMD Instinct MI355X"},
      {"NVIDIA H100 80GB HBM3", 132, "NVIDIA H100 SXM"},
      {"NVIDIA H100 PCIe", 114, "NVIDIA H100 PCIe"},
      {"NVIDIA H200", 132, "NVIDIA H200 SXM"},
      {"AMD Instinct MI210", 104, "AMD Instinct MI210"},
      {"MI250X/MI250", 104, "AMD Instinct MI250 (one GCD)"},
      {"AMD Instinct MI300A", 228, "AMD Instinct MI300A"},
      {"AMD Instinct MI350X", 256, "AMD Instinct MI350X"},
      {"NVIDIA A100-SXM4-40GB", 108, "NVIDIA A100 SXM4 40GB"},
      {"NVIDIA A100-SXM4-80GB", 108, "NVIDIA A100 SXM4 80GB"},
      {"NVIDIA A100-PCIE-40GB", 108, "NVIDIA A100 PCIe 40GB"},
      {"NVIDIA A100 80GB PCIe", 108, "NVIDIA A100 PCIe 80GB"},
      {"NVIDIA GH200 480GB", 132, "NVIDIA GH200 96GB"},
      {"NVIDIA GH200 144G HBM3e", 132, "NVIDIA GH200 144GB"},
      {"NVIDIA B200", 148, "NVIDIA B200"},
      {"NVIDIA GB200", 152, "NVIDIA GB200 (one GPU)"},
      {"NVIDIA H100 NVL", 132, "NVIDIA H100 NVL"},
      {"NVIDIA B300 SXM6 AC", 148, "NVIDIA B300"},
      {"NVIDIA GB300", 152, "NVIDIA GB300 (one GPU)"},
      {"NVIDIA L40S", 142, "NVIDIA L40S"},
      {"NVIDIA GeForce RTX 4090", 128, "NVIDIA GeForce RTX 4090"},
      {"NVIDIA GeForce RTX 5090", 170, "NVIDIA GeForce RTX 5090"},
      {"NVIDIA RTX 6000 Ada Generation", 142, "NVIDIA RTX 6000 Ada Generation"},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 188,
       "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"}};
  for (const auto& [name, multiprocessors, device] : devices)
    EXPECT_EQ(find(name, multiprocessors).value_or(DatasheetPeaks{}).device, device) << name;
  for (const char* name :
       {"", "AMD EPYC", "AMD Instinct MI100", "NVIDIA H200 NVL", "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb"}) {
    EXPECT_FALSE(find(name)) << name;
  }
  EXPECT_FALSE(find("AMD Instinct MI300X", 38)) << "one die of a partitioned card";
  EXPECT_FALSE(find("NVIDIA A100-SXM4-80GB", 42)) << "another number of multiprocessors";
}

TEST(DatasheetPeaksTest, WithoutAProductsNameArchitectureComputeUnitsAndMemoryTell) {
  struct Nameless {
    const char* name;
    const char* architecture;
    int multiprocessors;
    int64_t gibibytes;
    const char* device;
    double bf16, bandwidth;  // 0: unknown
  };
  const char* const generic = "AMD Radeon Graphics";
  const Nameless devices[] = {
      {generic, "gfx942", 304, 192, "AMD Instinct MI300X", 1307.4e12, 5.3e12},
      {"unnamed GPU", "gfx942", 304, 256, "AMD Instinct MI325X", 1307.4e12, 6e12},
      {"", "gfx942", 304, 0, "AMD Instinct MI300X or AMD Instinct MI325X", 1307.4e12, 0},
      {generic, "gfx942", 228, 128, "AMD Instinct MI300A", 980.6e12, 5.3e12},
      {generic, "gfx90a", 110, 64, "AMD Instinct MI250X (one GCD)", 191.5e12, 1638.4e9},
      {generic, "gfx90a", 104, 64, "AMD Instinct MI210 or AMD Instinct MI250 (one GCD)", 0,
       1638.4e9},
      {generic, "gfx950", 256, 288, "AMD Instinct MI355X or AMD Instinct MI350X", 0, 8e12}};
  for (const auto& [name, architecture, units, gibibytes, device, bf16, bandwidth] : devices) {
    DeviceDescription description;
    description.name = name;
    description.architecture = architecture;
    description.multiprocessors = units;
    description.memory_bytes = (gibibytes << 30) * 99 / 100;
    const auto found = find_datasheet_peaks(real_file, description).value_or(DatasheetPeaks{});
    EXPECT_EQ(found.device, device);
    EXPECT_EQ(found.flops.contains("bf16") ? found.flops.at("bf16") : 0, bf16) << device;
    EXPECT_EQ(found.memory_bandwidth, bandwidth) << device;
    testing::expect_mentions(found.source, {architecture, std::to_string(units), "is none"});
    description.multiprocessors = 38;
    EXPECT_FALSE(find_datasheet_peaks(real_file, description)) << "a partition, or another card";
    description.multiprocessors = units;
    description.name = "AMD Instinct MI999X";
    EXPECT_FALSE(find_datasheet_peaks(real_file, description)) << "a product that is not there";
  }
}

TEST(DatasheetPeaksTest, FiguresAreDenseAndOfOneLogicalDevice) {
  const DatasheetPeaks mi250x = find("AMD Instinct MI250X").value();
  EXPECT_DOUBLE_EQ(mi250x.flops.at("f32"), 47.85e12);
  EXPECT_DOUBLE_EQ(mi250x.flops.at("bf16"), 191.5e12);
  EXPECT_EQ(mi250x.memory_bytes, int64_t{64} << 30);
  const DatasheetPeaks h100 = find("NVIDIA H100 80GB HBM3").value();
  EXPECT_DOUBLE_EQ(h100.flops.at("f32"), 66.9e12);
  EXPECT_DOUBLE_EQ(h100.flops.at("bf16"), 989.4e12);
  EXPECT_DOUBLE_EQ(h100.memory_bandwidth, 3.35e12);
  EXPECT_NE(h100.source.find("https://"), std::string::npos);
}

TEST(DatasheetPeaksTest, ErrorsNameFileRowAndFigure) {
  using Json = nlohmann::json;
  const testing::TemporaryFolder files;
  const auto error_of_file = [&] {
    return testing::error_of([&] { find_datasheet_peaks(files / "bad_peaks.json", {}); });
  };
  testing::expect_mentions(error_of_file(), {"bad_peaks.json", "cannot be read"});
  files.write("bad_peaks.json", "{\"devices\": [");
  testing::expect_mentions(error_of_file(), {"bad_peaks.json", "not valid JSON", "line 2"});
  std::ifstream stream(real_file);
  const Json good = Json::parse(stream);
  // One thing of a valid row spoilt, and what the error says.
  const std::tuple<const char*, Json, std::string> spoilt[] = {
      {"/memory_bytes", "192 GB", "memory_bytes = \"192 GB\": must be a positive integer"},
      {"/flops/f32_matrix", -1.5, "f32_matrix = -1.5: must be a positive number"},
      {"/types/f32", "f32_tensor", "'f32_tensor' not found"},
      {"/match", {{"words", {"mi300x"}}}, "'multiprocessors' not found"},
      {"/match/words", Json::array(), "words must not be empty"},
      {"/source", nullptr, "null"}};
  for (const auto& [pointer, value, said] : spoilt) {
    Json document = good;
    document["devices"][1][Json::json_pointer(pointer)] = value;
    files.write("bad_peaks.json", document.dump());
    testing::expect_mentions(error_of_file(), {"bad_peaks.json: devices[1]: ", said});
  }
}

}  // namespace
}  // namespace tinyllama::instruments

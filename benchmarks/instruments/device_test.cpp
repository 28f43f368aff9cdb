// Devices, the context of results, and the timer of a device.
#include "benchmarks/instruments/device.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <stdexcept>

#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/timer.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

std::string selection_error(std::string_view text) {
  return testing::error_of([&] { Device::select(text); });
}

TEST(DeviceTest, ARankTakesTheGpuOfItsNumberWhereThereIsOne) {
  EXPECT_FALSE(Device::select("cpu", 1).is_gpu());
  const int gpus = gpu_count();
  const Device device = Device::select("auto", gpus > 1 ? 1 : 7);
  EXPECT_EQ(device.is_gpu(), gpus > 0);
  // a launcher that binds ranks shows each of them its own only
  if (gpus > 0) {
    EXPECT_EQ(device.torch().index(), gpus > 1 ? 1 : 0);
  }
}

TEST(DeviceTest, CpuDescribesItself) {
  const Device cpu = Device::select("cpu");
  EXPECT_EQ(cpu.backend(), Backend::cpu);
  EXPECT_FALSE(cpu.is_gpu());
  EXPECT_TRUE(cpu.torch().is_cpu());
  EXPECT_FALSE(cpu.description().name.empty());
  EXPECT_FALSE(cpu.description().architecture.empty());
  EXPECT_GT(cpu.description().memory_bytes, 0);
  EXPECT_GT(cpu.description().multiprocessors, 0);
  EXPECT_GE(cpu.description().last_level_cache_bytes, 0);
  EXPECT_GT(cpu.free_memory_bytes(), 0);
  EXPECT_NO_THROW(cpu.synchronize());
  EXPECT_NO_THROW(Device::select("auto"));
}

TEST(DeviceTest, ErrorsNameTheTextAndTheAllowedForms) {
  for (const char* text : {"", "gpu", "CPU", "cpu:0", "auto:1", "cuda:", "cuda:x", "cuda:1x",
                           "hip:-1", "hip:999", "cuda:99999999999999999999"}) {
    testing::expect_mentions(selection_error(text),
                             {fmt::format("\"{}\"", text),
                              "allowed: auto, cpu, cuda, cuda:N, hip, hip:N", "libtorch offers"});
  }
}

TEST(DeviceTest, HipWithoutRocmSaysWhatTheRuntimeSees) {
  if (gpu_runtime::name() != "HIP" || Device::select("auto").is_gpu()) {
    GTEST_SKIP() << "needs a build with HIP and a libtorch without GPUs";
  }
  testing::expect_mentions(
      selection_error("hip"),
      {fmt::format("libtorch was built without ROCm; the HIP runtime sees {} devices",
                   gpu_runtime::device_count())});
}

TEST(DeviceTest, TheLastLevelCacheMayBeBehindTheOneThatIsTold) {
  constexpr int64_t mebibyte = 1 << 20;
  const std::pair<const char*, int64_t> caches[] = {
      {"sm_90", 50},   {"gfx90a", 50},  {"gfx942", 256}, {"gfx1030", 128},
      {"gfx1100", 96}, {"gfx1201", 64}, {"gfx1103", 50}, {"gfx1299", 0}};
  for (const auto& [architecture, mebibytes] : caches)
    EXPECT_EQ(last_level_cache_bytes(architecture, 50 * mebibyte), mebibytes * mebibyte)
        << architecture;
  EXPECT_EQ(device_identity(Device::select("cpu")), "");
}

TEST(ContextTest, SettingsHoldWhatSteersARun) {
  setenv("OMP_TEST_OF_THE_CONTEXT", "a=b", 1);
  const auto settings = system_settings(Device::select("cpu"));
  unsetenv("OMP_TEST_OF_THE_CONTEXT");
  EXPECT_EQ(settings.at("env.OMP_TEST_OF_THE_CONTEXT"), "a=b");
  EXPECT_EQ(settings.at("float32_matmul_precision"), "highest");
  EXPECT_EQ(settings.at("deterministic_algorithms"), "false");
  EXPECT_FALSE(settings.at("cpu_affinity").empty());
  EXPECT_FALSE(settings.contains("env.PATH"));
}

TEST(ContextTest, TextsKeepTheLastNameOfAPath) {
  const std::string here = std::filesystem::current_path().string();
  const testing::TemporaryFolder home;
  const auto run = home.path() / "Jane Doe's" / "a=b" / "my run";
  std::filesystem::create_directories(run);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--data=" + run.string() + "/tokens 1.bin", "--data=tokens 1.bin"},
      {run.string() + "/a.so:/opt/b c", "a.so:b c"},
      {"8", "8"},
      {"", ""},
      {"results/run", "results/run"},
      {"--data=/home/somebody/tokens.bin", "--data=tokens.bin"},
      {"/home/somebody/a.so:/opt/b/ 1/2 / 3", "a.so:b 1/2 / 3"},
      {"--profile-dir=" + here + "/results/run", "--profile-dir=results/run"},
      {"tcp://node:29500", "tcp://node:29500"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(without_folders(text), expected) << text;
  EXPECT_TRUE(std::regex_match(host_word(), std::regex("host_[0-9a-f]{8}"))) << host_word();
}

TEST(TimerTest, EventsInTheWrongOrderAreNoTime) {
  std::vector<std::vector<double>> taken = {{0.0, -1e-3}, {-1e-3, 2e-5, 0.0, 3e-5}};
  size_t calls = 0;
  EXPECT_EQ(until_timed([&] { return taken.at(calls++); }), (std::vector<double>{2e-5, 3e-5}));
  EXPECT_EQ(calls, 2U);
  testing::expect_mentions(
      testing::error_of([] { until_timed([] { return std::vector<double>{-1e-3}; }); }),
      {"no time above 0"});
  const double empty = seconds_of_empty_pair(Device::select("auto"));
  EXPECT_GE(empty, 0);
  EXPECT_LT(empty, 1e-3);
}

TEST(TimerTest, PreparesBeforeEachRunAndTimesTheRunAlone) {
  std::string calls;
  const auto seconds = time_iterations(
      Device::select("auto"), 3, [&] { calls += 'p'; }, [&] { calls += 'r'; });
  EXPECT_EQ(calls, "prprpr");
  EXPECT_EQ(seconds.size(), 3U);
  calls.clear();
  EXPECT_EQ(
      time_iterations(
          Device::select("auto"), 3, [&] { calls += 'p'; }, [&] { calls += 'r'; }, Clock::now(), 2)
          .size(),
      1U)
      << "the deadline is over";
  EXPECT_EQ(calls, "prr");
  volatile double sink = 0;
  const auto work = [&] {
    for (int step = 0; step < 2'000'000; ++step) sink = sink + 1;
  };
  const Device cpu = Device::select("cpu");
  const auto prepared = time_iterations(cpu, 5, work, [] {});
  const auto timed = time_iterations(
      cpu, 5, [] {}, work);
  EXPECT_LT(*std::ranges::min_element(prepared), *std::ranges::min_element(timed));
  EXPECT_THROW(time_iterations(
                   cpu, 1, [] {}, [] { throw std::runtime_error("no"); }),
               std::runtime_error);
}

}  // namespace
}  // namespace tinyllama::instruments

#include "benchmarks/instruments/device.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "benchmarks/instruments/gpu_runtime.hpp"
#include "benchmarks/instruments/host_machine.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

std::string selection_error(std::string_view text) {
  try {
    Device::select(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
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
  EXPECT_EQ(cpu.used_memory_bytes(), 0);
  EXPECT_NO_THROW(cpu.synchronize());
}

TEST(DeviceTest, AutoFindsADevice) {
  EXPECT_NO_THROW(Device::select("auto"));
}

TEST(DeviceTest, ErrorsNameTheTextAndTheAllowedForms) {
  for (const char* text : {"", "gpu", "CPU", "cpu:0", "auto:1", "cuda:", "cuda:x", "cuda:1x",
                           "hip:-1", "hip:999", "cuda:99999999999999999999"}) {
    const std::string error = selection_error(text);
    EXPECT_NE(error.find(fmt::format("\"{}\"", text)), std::string::npos) << error;
    EXPECT_NE(error.find("allowed: auto, cpu, cuda, cuda:N, hip, hip:N"), std::string::npos)
        << error;
    EXPECT_NE(error.find("libtorch offers"), std::string::npos) << error;
  }
}

TEST(DeviceTest, HipWithoutRocmSaysWhatTheRuntimeSees) {
  if (gpu_runtime::name() != "HIP" || Device::select("auto").is_gpu()) {
    GTEST_SKIP() << "needs a build with HIP and a libtorch without GPUs";
  }
  EXPECT_NE(selection_error("hip").find("libtorch was built without ROCm; the HIP runtime sees " +
                                        std::to_string(gpu_runtime::device_count()) + " devices"),
            std::string::npos)
      << selection_error("hip");
}

/// A folder of control groups like the kernel's, for one test.
class ControlGroupTest : public ::testing::Test {
 protected:
  void write(const std::filesystem::path& name, const std::string& text) {
    const std::filesystem::path file = folder_.path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  host_machine::ControlGroupMemory read() const {
    return host_machine::control_group_memory(folder_ / "membership", folder_ / "mount");
  }

 private:
  ::tinyllama::testing::TemporaryFolder folder_;
};

TEST_F(ControlGroupTest, NoGroupLimitsNothing) {
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(read().limit_bytes, none);
  EXPECT_EQ(read().available_bytes, none);
}

TEST_F(ControlGroupTest, Version2TakesTheTightestAncestor) {
  write("membership", "0::/outer/inner\n");
  write("mount/outer/memory.max", "1000000\n");
  write("mount/outer/memory.current", "400000\n");
  write("mount/outer/memory.stat", "anon 1\ninactive_file 100000\n");
  write("mount/outer/inner/memory.max", "max\n");
  EXPECT_EQ(read().limit_bytes, 1'000'000);
  EXPECT_EQ(read().available_bytes, 700'000);
}

TEST_F(ControlGroupTest, Version1IsFoundByItsController) {
  write("membership", "5:devices:/a\n4:cpu,memory:/a\n0::/\n");
  write("mount/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("mount/memory/a/memory.limit_in_bytes", "2000000\n");
  write("mount/memory/a/memory.usage_in_bytes", "2500000\n");
  EXPECT_EQ(read().limit_bytes, 2'000'000);
  EXPECT_EQ(read().available_bytes, 0);
}

}  // namespace
}  // namespace tinyllama::instruments

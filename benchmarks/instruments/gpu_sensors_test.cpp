// Readings of GPUs, from fakes of their vendors' libraries (tests/fakes/).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "benchmarks/instruments/system_sampler.hpp"
#include "benchmarks/instruments/testing.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;

/// How often a fake was initialised and not yet shut down.
int open_sessions(const char* fake) {
  void* library = ::dlopen(fake, RTLD_NOW | RTLD_LOCAL);
  const auto ask = reinterpret_cast<int (*)()>(::dlsym(library, "fake_open_sessions"));
  const int count = ask();
  ::dlclose(library);
  return count;
}

/// A made-up /sys, and the fakes as the only libraries.
class GpuSensorsTest : public ::testing::Test {
 protected:
  void write_clock(const std::string& bus_id, const std::string& hertz) {
    files_.write(fs::path("bus/pci/devices") / bus_id / "hwmon/hwmon7/freq1_input", hertz);
  }
  std::unique_ptr<SystemReader> nvml(const GpuIdentity& gpu,
                                     const std::string& library = NVML_FAKE) {
    sources_.nvml = {library};
    return nvml_reader(sources_, gpu);
  }
  std::unique_ptr<SystemReader> rocm(const GpuIdentity& gpu) const {
    return rocm_smi_reader(sources_, gpu);
  }

  const FakeFiles files_;
  SystemSources sources_{.sys = files_ / "", .proc = {}, .nvml = {}, .rocm_smi = {ROCM_SMI_FAKE}};
};

TEST_F(GpuSensorsTest, NvmlReadsTheCardAtTheBusAddress) {
  const auto reader = nvml({"0000:5E:00.0", 0});
  const SystemReading reading = reader->read();
  EXPECT_EQ(reading.utilization_percent, 90);
  EXPECT_EQ(reading.clock_MHz, 1980);
  EXPECT_EQ(reading.temperature_celsius, 64);
  EXPECT_DOUBLE_EQ(reading.power_watts.value(), 655.25);
  EXPECT_EQ(reader->source(), "NVML (" NVML_FAKE ")");
}

TEST_F(GpuSensorsTest, NvmlTakesTheNumberWithoutAnAddressAndLeavesOutWhatIsNotReported) {
  const SystemReading reading = nvml({"", 0})->read();
  EXPECT_EQ(reading.utilization_percent, 10);
  EXPECT_FALSE(reading.temperature_celsius.has_value());
  const SystemReading old_driver = nvml({"", 1}, NVML_FAKE_WITHOUT_POWER)->read();
  EXPECT_FALSE(old_driver.power_watts.has_value()) << "the library has no such function";
  EXPECT_EQ(old_driver.utilization_percent, 90);
}

TEST_F(GpuSensorsTest, ErrorsOfNvmlNameTheLibraryAndTheCause) {
  const auto error = [&](const std::string& library, const GpuIdentity& gpu) {
    return error_of([&] { nvml(gpu, library); });
  };
  expect_mentions(error("libno-such-library.so.1", {}), {"libno-such-library.so.1"});
  EXPECT_EQ(error(NVML_FAKE_WITHOUT_INIT, {}), NVML_FAKE_WITHOUT_INIT " has no nvmlInit_v2");
  expect_mentions(error(NVML_FAKE, {"0000:99:00.0", 0}), {"knows no GPU 0000:99:00.0"});
  expect_mentions(error(NVML_FAKE, {"", 2}), {"knows no GPU number 2"});
}

TEST_F(GpuSensorsTest, RocmSmiReadsTheCardAtTheBusAddressOrOfTheNumber) {
  write_clock("0000:03:00.0", "500000000");
  write_clock("0000:c1:00.0", "1700000000");
  for (const GpuIdentity& gpu : {GpuIdentity{"0000:C1:00.0", 0}, GpuIdentity{"", 1}}) {
    const auto reader = rocm(gpu);
    const SystemReading reading = reader->read();
    EXPECT_EQ(reading.utilization_percent, 77);
    EXPECT_DOUBLE_EQ(reading.clock_MHz.value(), 1700);
    EXPECT_DOUBLE_EQ(reading.temperature_celsius.value(), 68.5) << "the junction's";
    EXPECT_DOUBLE_EQ(reading.power_watts.value(), 250.5) << "the average, not the socket's";
    EXPECT_EQ(reader->source(), "ROCm SMI (" ROCM_SMI_FAKE ") and amdgpu's files");
  }
}

TEST_F(GpuSensorsTest, OtherSensorsOfRocmSmiServeWhereTheFirstAreMissing) {
  const SystemReading reading = rocm({"0001:c6:1f.7", 0})->read();
  EXPECT_EQ(reading.utilization_percent, 88);
  EXPECT_DOUBLE_EQ(reading.temperature_celsius.value(), 52) << "the edge's";
  EXPECT_DOUBLE_EQ(reading.power_watts.value(), 480) << "the socket's";
}

TEST_F(GpuSensorsTest, WhatRocmSmiDoesNotReportIsAbsent) {
  const auto reader = rocm({"0000:c9:00.0", 0});
  const SystemReading second_die = reader->read();
  EXPECT_EQ(second_die.utilization_percent, 99);
  EXPECT_FALSE(second_die.power_watts.has_value());
  EXPECT_FALSE(second_die.clock_MHz.has_value());
  EXPECT_EQ(reader->source(), "ROCm SMI (" ROCM_SMI_FAKE ")");
  write_clock("0000:c1:00.0", "0");
  EXPECT_FALSE(rocm({"0000:c1:00.0", 0})->read().clock_MHz.has_value()) << "a card that sleeps";
  sources_.rocm_smi = {"libno-such-library.so.1", ROCM_SMI_FAKE_WITHOUT_SOCKET_POWER};
  EXPECT_FALSE(rocm({"0001:c6:1f.7", 0})->read().power_watts.has_value());
  EXPECT_DOUBLE_EQ(rocm({"0000:c1:00.0", 0})->read().power_watts.value(), 250.5);
}

TEST_F(GpuSensorsTest, ErrorsOfRocmSmiNameTheLibraryAndTheCause) {
  const auto error = [&](const GpuIdentity& gpu) { return error_of([&] { rocm(gpu); }); };
  expect_mentions(error({"0000:99:00.0", 0}), {"knows no GPU 0000:99:00.0 among its 4"});
  expect_mentions(error({"", 4}), {"knows no GPU number 4 among its 4"});
  sources_.rocm_smi = {ROCM_SMI_FAKE_WITHOUT_INIT};
  EXPECT_EQ(error({"", 0}), ROCM_SMI_FAKE_WITHOUT_INIT " has no rsmi_init");
  sources_.rocm_smi = {"libno-such-library.so.1", "libnor-this-one.so.1"};
  expect_mentions(error({"", 0}), {"libno-such-library.so.1"});
  sources_.rocm_smi = {};
  EXPECT_EQ(error({"", 0}), "no library is named");
}

TEST_F(GpuSensorsTest, TheLibrariesAreShutDownAgain) {
  {
    const auto of_nvidia = nvml({"", 0}), of_amd = rocm({"", 0});
    EXPECT_EQ(open_sessions(NVML_FAKE), 1);
    EXPECT_EQ(open_sessions(ROCM_SMI_FAKE), 1);
  }
  EXPECT_NE(error_of([&] { nvml({"", 2}); }), "no error");
  EXPECT_NE(error_of([&] { rocm({"", 4}); }), "no error");
  EXPECT_EQ(open_sessions(NVML_FAKE), 0) << "after a card that is not there";
  EXPECT_EQ(open_sessions(ROCM_SMI_FAKE), 0) << "after a card that is not there";
}

}  // namespace
}  // namespace tinyllama::instruments

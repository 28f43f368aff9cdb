#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "benchmarks/instruments/shared_library.hpp"
#include "benchmarks/instruments/system_readings.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;

class RocmSmiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sources_.sys = folder_.path();
    sources_.rocm_smi = {ROCM_SMI_STAND_IN};
  }

  void write_clock(const std::string& bus_id, const std::string& hertz) {
    const fs::path folder = sources_.sys / "bus/pci/devices" / bus_id / "hwmon/hwmon7";
    fs::create_directories(folder);
    std::ofstream(folder / "freq1_input") << hertz;
  }
  SystemReading read(const GpuIdentity& gpu) const {
    return rocm_smi_reader(sources_, gpu)->read();
  }
  std::string error_of(const GpuIdentity& gpu) const {
    try {
      rocm_smi_reader(sources_, gpu);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }
  static int open_sessions() {
    return SharedLibrary(ROCM_SMI_STAND_IN).require<int (*)()>("stand_in_open_sessions")();
  }
  SystemSources sources_;

 private:
  ::tinyllama::testing::TemporaryFolder folder_;
};

TEST_F(RocmSmiTest, ReadsTheCardAtTheBusAddress) {
  write_clock("0000:03:00.0", "500000000\n");
  write_clock("0000:c1:00.0", "1700000000\n");
  const SystemReading reading = read({"0000:C1:00.0", 0});
  EXPECT_EQ(reading.utilization_percent, 77);
  EXPECT_DOUBLE_EQ(reading.clock_MHz.value(), 1700);
  EXPECT_DOUBLE_EQ(reading.temperature_celsius.value(), 68.5) << "the junction's";
  EXPECT_DOUBLE_EQ(reading.power_watts.value(), 250.5) << "the average, not the socket's";
}

TEST_F(RocmSmiTest, WithoutAnAddressTheNumberDecides) {
  write_clock("0000:c1:00.0", "1700000000\n");
  const auto reader = rocm_smi_reader(sources_, {"", 1});
  const SystemReading reading = reader->read();
  EXPECT_EQ(reading.utilization_percent, 77);
  EXPECT_DOUBLE_EQ(reading.clock_MHz.value(), 1700);
  EXPECT_EQ(reader->source(),
            std::string("ROCm SMI (") + ROCM_SMI_STAND_IN + ") and amdgpu's files");
}

TEST_F(RocmSmiTest, OtherSensorsServeWhereTheFirstAreMissing) {
  const SystemReading reading = read({"0001:c6:1f.7", 0});
  EXPECT_EQ(reading.utilization_percent, 88);
  EXPECT_DOUBLE_EQ(reading.temperature_celsius.value(), 52) << "the edge's";
  EXPECT_DOUBLE_EQ(reading.power_watts.value(), 480) << "the socket's";
}

TEST_F(RocmSmiTest, WhatIsNotReportedIsAbsent) {
  const auto reader = rocm_smi_reader(sources_, {"0000:c9:00.0", 0});
  const SystemReading second_die = reader->read();
  EXPECT_EQ(second_die.utilization_percent, 99);
  EXPECT_FALSE(second_die.power_watts.has_value());
  EXPECT_FALSE(second_die.clock_MHz.has_value());
  EXPECT_EQ(reader->source(), std::string("ROCm SMI (") + ROCM_SMI_STAND_IN + ")");
  write_clock("0000:c1:00.0", "0\n");
  EXPECT_FALSE(read({"0000:c1:00.0", 0}).clock_MHz.has_value());
}

TEST_F(RocmSmiTest, AFunctionThatIsMissingIsAnAbsentReading) {
  sources_.rocm_smi = {"libno-such-library.so.1", ROCM_SMI_STAND_IN_WITHOUT_SOCKET_POWER};
  EXPECT_FALSE(read({"0001:c6:1f.7", 0}).power_watts.has_value());
  EXPECT_DOUBLE_EQ(read({"0000:c1:00.0", 0}).power_watts.value(), 250.5);
}

TEST_F(RocmSmiTest, ErrorsNameTheLibraryAndTheCause) {
  EXPECT_NE(error_of({"0000:99:00.0", 0}).find("knows no GPU 0000:99:00.0 among its 4"),
            std::string::npos);
  EXPECT_NE(error_of({"", 4}).find("knows no GPU number 4 among its 4"), std::string::npos);
  sources_.rocm_smi = {ROCM_SMI_STAND_IN_WITHOUT_INIT};
  EXPECT_EQ(error_of({"", 0}), std::string(ROCM_SMI_STAND_IN_WITHOUT_INIT) + " has no rsmi_init");
  sources_.rocm_smi = {"libno-such-library.so.1", "libnor-this-one.so.1"};
  EXPECT_NE(error_of({"", 0}).find("libno-such-library.so.1"), std::string::npos);
  sources_.rocm_smi = {};
  EXPECT_EQ(error_of({"", 0}), "no library is named");
}

TEST_F(RocmSmiTest, TheLibraryIsShutDownAgain) {
  {
    const auto reader = rocm_smi_reader(sources_, {"", 0});
    EXPECT_EQ(open_sessions(), 1);
  }
  EXPECT_EQ(open_sessions(), 0);
  EXPECT_NE(error_of({"", 4}), "no error");
  EXPECT_EQ(open_sessions(), 0) << "after a card that is not there";
}

}  // namespace
}  // namespace tinyllama::instruments

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "benchmarks/instruments/shared_library.hpp"
#include "benchmarks/instruments/system_readings.hpp"

namespace tinyllama::instruments {
namespace {

SystemSources with_library(const std::string& library) {
  SystemSources sources;
  sources.nvml = {library};
  return sources;
}

std::string error_of(const std::string& library, const GpuIdentity& gpu) {
  try {
    nvml_reader(with_library(library), gpu);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

int open_sessions() {
  return SharedLibrary(NVML_STAND_IN).require<int (*)()>("stand_in_open_sessions")();
}

TEST(NvmlTest, ReadsTheCardAtTheBusAddress) {
  const auto reader = nvml_reader(with_library(NVML_STAND_IN), {"0000:5E:00.0", 0});
  const SystemReading reading = reader->read();
  EXPECT_EQ(reading.utilization_percent, 90);
  EXPECT_EQ(reading.clock_MHz, 1980);
  EXPECT_EQ(reading.temperature_celsius, 64);
  EXPECT_DOUBLE_EQ(reading.power_watts.value(), 655.25);
  EXPECT_EQ(reader->source(), std::string("NVML (") + NVML_STAND_IN + ")");
}

TEST(NvmlTest, WithoutAnAddressTheNumberDecidesAndWhatIsNotReportedIsAbsent) {
  const SystemReading reading = nvml_reader(with_library(NVML_STAND_IN), {"", 0})->read();
  EXPECT_EQ(reading.utilization_percent, 10);
  EXPECT_FALSE(reading.temperature_celsius.has_value());
}

TEST(NvmlTest, AFunctionThatIsMissingIsAnAbsentReading) {
  const auto reader = nvml_reader(with_library(NVML_STAND_IN_WITHOUT_POWER), {"", 1});
  const SystemReading reading = reader->read();
  EXPECT_FALSE(reading.power_watts.has_value());
  EXPECT_EQ(reading.utilization_percent, 90);
}

TEST(NvmlTest, ErrorsNameTheLibraryAndTheCause) {
  EXPECT_NE(error_of("libno-such-library.so.1", {}).find("libno-such-library.so.1"),
            std::string::npos);
  EXPECT_EQ(error_of(NVML_STAND_IN_WITHOUT_INIT, {}),
            std::string(NVML_STAND_IN_WITHOUT_INIT) + " has no nvmlInit_v2");
  EXPECT_NE(error_of(NVML_STAND_IN, {"0000:99:00.0", 0}).find("knows no GPU 0000:99:00.0"),
            std::string::npos);
  EXPECT_NE(error_of(NVML_STAND_IN, {"", 2}).find("knows no GPU number 2"), std::string::npos);
}

TEST(NvmlTest, TheLibraryIsShutDownAgain) {
  {
    const auto reader = nvml_reader(with_library(NVML_STAND_IN), {"", 0});
    EXPECT_EQ(open_sessions(), 1);
  }
  EXPECT_EQ(open_sessions(), 0);
  EXPECT_NE(error_of(NVML_STAND_IN, {"", 2}), "no error");
  EXPECT_EQ(open_sessions(), 0) << "after a card that is not there";
}

}  // namespace
}  // namespace tinyllama::instruments

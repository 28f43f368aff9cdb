#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/instruments/system_sampler.hpp"
#include "benchmarks/instruments/timer.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;

double process_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

/// A made-up /sys and /proc for each test.
class CpuReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sources_.sys = files_ / "sys";
    sources_.proc = files_ / "proc";
  }

  void write(const fs::path& name, const std::string& text) { files_.write(name, text); }
  void write_frequency(int processor, int kilohertz) {
    write(fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", processor),
          std::to_string(kilohertz));
  }
  void write_counter(const std::string& zone, const std::string& name, int64_t microjoules) {
    const fs::path folder = fs::path("sys/class/powercap") / zone;
    write(folder / "name", name);
    write(folder / "energy_uj", std::to_string(microjoules));
    write(folder / "max_energy_range_uj", "10000000");
  }
  SystemReader reader(const std::vector<int>& processors = {0}) const {
    return cpu_reader(sources_, processors);
  }
  /// Joules between two readings, and that they were turned into power by the time between them.
  static void expect_energy(const SystemReader& from, const std::function<void()>& change,
                            double joules) {
    const auto before = Clock::now();
    from.read();
    const auto inner = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    change();
    const double shortest = seconds_since(inner);
    const double watts = from.read().at("power_watts");
    EXPECT_LE(watts, joules / shortest);
    EXPECT_GE(watts, joules / seconds_since(before));
  }

  SystemSources sources_;

 private:
  testing::TemporaryFolder files_;
};

TEST_F(CpuReaderTest, UtilizationIsTheShareOfTheUsableProcessors) {
  for (const int usable : {1, 4}) {
    const auto from = reader(std::vector<int>(static_cast<size_t>(usable)));
    from.read();
    const auto start = Clock::now();
    const double used = process_seconds();
    while (process_seconds() < used + 0.05) continue;
    const double expected = 100 * (process_seconds() - used) / (seconds_since(start) * usable);
    const double percent = from.read().at("utilization_percent");
    EXPECT_NEAR(percent, expected, 0.1 * expected);
    EXPECT_LE(percent, 100);
  }
}

TEST_F(CpuReaderTest, WithoutTheKernelsFilesOnlyUtilizationIsKnown) {
  const auto from = reader();
  from.read();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const SystemReading reading = from.read();
  EXPECT_LT(reading.at("utilization_percent"), 20) << "of a process that slept";
  EXPECT_EQ(reading.size(), 1U);
}

TEST_F(CpuReaderTest, ClockIsTheMeanOfTheProcessorsThatWeMayUse) {
  write("proc/cpuinfo",
        "processor\t: 0\ncpu MHz\t\t: 1000.5\n\nprocessor\t: 1\ncpu MHz\t\t: 2000.5\n\n"
        "processor\t: 2\ncpu MHz\t\t: 9000.0\n");
  EXPECT_DOUBLE_EQ(reader({0, 1}).read().at("clock_MHz"), 1500.5);
  EXPECT_EQ(reader().source, "getrusage, /proc/cpuinfo") << "without a driver";
  std::vector<int> processors;
  for (int processor = 0; processor < 12; ++processor) {
    write_frequency(processor, processor < 8 ? 1'000'000 : 2'000'000);
    processors.push_back(processor);
  }
  EXPECT_DOUBLE_EQ(reader({7, 8}).read().at("clock_MHz"), 1500);
  EXPECT_EQ(reader({7, 8}).source, "getrusage, cpufreq");
  const auto some_at_a_time = reader(processors);
  EXPECT_DOUBLE_EQ(some_at_a_time.read().at("clock_MHz"), 1000);  // 0 to 7
  EXPECT_DOUBLE_EQ(some_at_a_time.read().at("clock_MHz"), 1500);  // 8 to 11, 0 to 3
}

TEST_F(CpuReaderTest, TemperatureIsTheHottestPackages) {
  // Each adds files to those before it, and what is preferred comes later.
  struct Sensor {
    std::vector<std::pair<const char*, const char*>> files;
    double celsius;
    const char* source;
  };
  const Sensor sensors[] = {
      {{{"thermal/thermal_zone0/type", "acpitz"},
        {"thermal/thermal_zone0/temp", "16800"},
        {"thermal/thermal_zone1/type", "x86_pkg_temp"},
        {"thermal/thermal_zone1/temp", "55000"}},
       55,
       "thermal zones"},
      {{{"hwmon/hwmon0/name", "k10temp"},
        {"hwmon/hwmon0/temp1_input", "45000"},
        {"hwmon/hwmon0/temp1_label", "Tctl"}},
       45,
       "hwmon"},
      // Without the fan's offset.
      {{{"hwmon/hwmon0/temp2_input", "41000"}, {"hwmon/hwmon0/temp2_label", "Tdie"}}, 41, "hwmon"},
      {{{"hwmon/hwmon1/name", "nvme"},
        {"hwmon/hwmon1/temp1_input", "99000"},
        {"hwmon/hwmon2/name", "coretemp"},
        {"hwmon/hwmon2/temp1_input", "51000"},
        {"hwmon/hwmon2/temp1_label", "Package id 0"},
        {"hwmon/hwmon3/name", "coretemp"},
        {"hwmon/hwmon3/temp1_input", "88000"},
        {"hwmon/hwmon3/temp1_label", "Core 0"},
        {"hwmon/hwmon3/temp2_input", "62500"},
        {"hwmon/hwmon3/temp2_label", "Package id 1"}},
       62.5,
       "hwmon"}};
  for (const auto& [files, celsius, source] : sensors) {
    for (const auto& [name, text] : files) write(fs::path("sys/class") / name, text);
    EXPECT_DOUBLE_EQ(reader().read().at("temperature_celsius"), celsius);
    testing::expect_mentions(reader().source, {source});
  }
}

TEST_F(CpuReaderTest, PowerIsTheEnergyOfThePackagesOverTime) {
  write_counter("intel-rapl:0", "package-0", 1'000'000);
  write_counter("intel-rapl:1", "package-1", 9'000'000);
  write_counter("intel-rapl:0:0", "core", 0);
  write_counter("intel-rapl:2", "psys", 0);
  const auto from = reader();
  testing::expect_mentions(from.source, {"RAPL"});
  const auto change = [this] {
    write_counter("intel-rapl:0", "package-0", 4'000'000);
    write_counter("intel-rapl:1", "package-1", 1'500'000);  // which started anew at 10 J
    write_counter("intel-rapl:0:0", "core", 9'000'000);
    write_counter("intel-rapl:2", "psys", 9'000'000);
  };
  expect_energy(from, change, 5.5);
}

TEST_F(CpuReaderTest, ACounterThatCannotBeFollowedIsAbsent) {
  write_counter("intel-rapl:0", "package-0", 1'000'000);
  write("sys/class/powercap/intel-rapl:1/name", "package-1");  // root alone may read its counter
  const auto from = reader();
  const auto tells_power = [&] { return from.read().contains("power_watts"); };
  EXPECT_TRUE(tells_power());
  const fs::path counter = sources_.sys / "class/powercap/intel-rapl:0/energy_uj";
  fs::remove(counter);
  EXPECT_FALSE(tells_power());
  std::ofstream(counter) << 5'000'000;
  EXPECT_FALSE(tells_power()) << "since when is not known";
  std::ofstream(counter) << 6'000'000;
  EXPECT_TRUE(tells_power());
}

TEST_F(CpuReaderTest, WhyThereIsNoEnergyIsSaid) {
  EXPECT_TRUE(why_no_energy(sources_).starts_with("no package in /sys/class/powercap"));
  write_counter("intel-rapl:0", "package-0", 1'000'000);
  write_counter("intel-rapl:0:0", "core", 9'000'000);
  EXPECT_EQ(why_no_energy(sources_), "");
  // power of one package of two would be too little
  write("sys/class/powercap/intel-rapl:1/name", "package-1");
  EXPECT_TRUE(why_no_energy(sources_).starts_with(
      "sys/class/powercap/intel-rapl:1/energy_uj cannot be read"))
      << why_no_energy(sources_);
}

}  // namespace
}  // namespace tinyllama::instruments

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/system_readings.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double process_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/// Uses the processor, and returns when it has used that much of it.
void work(double seconds) {
  const double until = process_seconds() + seconds;
  while (process_seconds() < until) continue;
}

/// A made-up /sys and /proc for each test.
class CpuReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sources_.sys = folder_ / "sys";
    sources_.proc = folder_ / "proc";
  }

  void write(const fs::path& name, const std::string& text) {
    const fs::path file = folder_.path() / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  void write_frequency(int processor, int kilohertz) {
    write("sys/devices/system/cpu/cpu" + std::to_string(processor) + "/cpufreq/scaling_cur_freq",
          std::to_string(kilohertz));
  }
  void write_counter(const std::string& zone, const std::string& name, int64_t microjoules) {
    const fs::path folder = fs::path("sys/class/powercap") / zone;
    write(folder / "name", name);
    write(folder / "energy_uj", std::to_string(microjoules));
    write(folder / "max_energy_range_uj", "10000000");
  }
  std::unique_ptr<SystemReader> reader(const std::vector<int>& processors = {0}) const {
    return cpu_reader(sources_, processors);
  }
  /// Joules between two readings, and that they were turned into power by the time between them.
  void expect_energy(SystemReader& from, const std::function<void()>& change, double joules) {
    const auto before = Clock::now();
    from.read();
    const auto inner = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    change();
    const double shortest = seconds_since(inner);
    const auto watts = from.read().power_watts;
    ASSERT_TRUE(watts.has_value());
    EXPECT_LE(*watts, joules / shortest);
    EXPECT_GE(*watts, joules / seconds_since(before));
  }

  SystemSources sources_;

 private:
  ::tinyllama::testing::TemporaryFolder folder_;
};

TEST_F(CpuReaderTest, UtilizationIsTheShareOfTheUsableProcessors) {
  for (const int usable : {1, 4}) {
    const auto from = reader(std::vector<int>(static_cast<size_t>(usable)));
    from->read();
    const auto start = Clock::now();
    const double used = process_seconds();
    work(0.05);
    const double expected = 100 * (process_seconds() - used) / (seconds_since(start) * usable);
    const double percent = from->read().utilization_percent.value();
    EXPECT_NEAR(percent, expected, 0.1 * expected);
    EXPECT_LE(percent, 100);
  }
}

TEST_F(CpuReaderTest, AProcessThatSleepsUsesNothing) {
  const auto from = reader();
  work(0.02);
  from->read();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LT(from->read().utilization_percent.value(), 20);
}

TEST_F(CpuReaderTest, WithoutTheKernelsFilesOnlyUtilizationIsKnown) {
  const auto from = reader();
  work(0.001);
  const SystemReading reading = from->read();
  EXPECT_TRUE(reading.utilization_percent.has_value());
  EXPECT_FALSE(reading.clock_MHz.has_value());
  EXPECT_FALSE(reading.temperature_celsius.has_value());
  EXPECT_FALSE(reading.power_watts.has_value());
}

TEST_F(CpuReaderTest, ClockIsTheMeanOfTheProcessorsThatWeMayUse) {
  write_frequency(0, 2'000'000);
  write_frequency(1, 3'000'000);
  write_frequency(2, 9'000'000);
  EXPECT_DOUBLE_EQ(reader({0, 1})->read().clock_MHz.value(), 2500);
  EXPECT_DOUBLE_EQ(reader({1})->read().clock_MHz.value(), 3000);
  EXPECT_EQ(reader({0, 1})->source(), "getrusage, cpufreq");
}

TEST_F(CpuReaderTest, ManyProcessorsAreReadInTurns) {
  std::vector<int> processors;
  for (int processor = 0; processor < 12; ++processor) {
    write_frequency(processor, processor < 8 ? 1'000'000 : 2'000'000);
    processors.push_back(processor);
  }
  const auto from = reader(processors);
  EXPECT_DOUBLE_EQ(from->read().clock_MHz.value(), 1000);  // 0 to 7
  EXPECT_DOUBLE_EQ(from->read().clock_MHz.value(), 1500);  // 8 to 11, 0 to 3
}

TEST_F(CpuReaderTest, WithoutADriverTheKernelsTableTellsTheClock) {
  write("proc/cpuinfo",
        "processor\t: 0\ncpu MHz\t\t: 1000.5\n\nprocessor\t: 1\ncpu MHz\t\t: 2000.5\n\n"
        "processor\t: 2\ncpu MHz\t\t: 9000.0\n");
  EXPECT_DOUBLE_EQ(reader({0, 1})->read().clock_MHz.value(), 1500.5);
  EXPECT_EQ(reader()->source(), "getrusage, /proc/cpuinfo");
}

TEST_F(CpuReaderTest, TemperatureIsTheHottestPackages) {
  for (const auto& [monitor, name] : {std::pair{"hwmon0", "nvme"}, std::pair{"hwmon1", "coretemp"},
                                      std::pair{"hwmon2", "coretemp"}}) {
    write(fs::path("sys/class/hwmon") / monitor / "name", name);
  }
  write("sys/class/hwmon/hwmon0/temp1_input", "99000");
  write("sys/class/hwmon/hwmon1/temp1_input", "51000");
  write("sys/class/hwmon/hwmon1/temp1_label", "Package id 0");
  write("sys/class/hwmon/hwmon2/temp1_input", "88000");
  write("sys/class/hwmon/hwmon2/temp1_label", "Core 0");
  write("sys/class/hwmon/hwmon2/temp2_input", "62500");
  write("sys/class/hwmon/hwmon2/temp2_label", "Package id 1");
  EXPECT_DOUBLE_EQ(reader()->read().temperature_celsius.value(), 62.5);
  EXPECT_NE(reader()->source().find("hwmon"), std::string::npos);
}

TEST_F(CpuReaderTest, TemperatureWithoutTheFansOffsetIsPreferred) {
  write("sys/class/hwmon/hwmon0/name", "k10temp");
  write("sys/class/hwmon/hwmon0/temp1_input", "75000");
  write("sys/class/hwmon/hwmon0/temp1_label", "Tctl");
  EXPECT_DOUBLE_EQ(reader()->read().temperature_celsius.value(), 75);
  write("sys/class/hwmon/hwmon0/temp2_input", "48000");
  write("sys/class/hwmon/hwmon0/temp2_label", "Tdie");
  EXPECT_DOUBLE_EQ(reader()->read().temperature_celsius.value(), 48);
}

TEST_F(CpuReaderTest, ThermalZonesServeWhereThereIsNoMonitor) {
  write("sys/class/thermal/thermal_zone0/type", "acpitz");
  write("sys/class/thermal/thermal_zone0/temp", "16800");
  write("sys/class/thermal/thermal_zone1/type", "x86_pkg_temp");
  write("sys/class/thermal/thermal_zone1/temp", "55000");
  EXPECT_DOUBLE_EQ(reader()->read().temperature_celsius.value(), 55);
  EXPECT_NE(reader()->source().find("thermal zones"), std::string::npos);
}

TEST_F(CpuReaderTest, PowerIsTheEnergyOfThePackagesOverTime) {
  write_counter("intel-rapl:0", "package-0", 1'000'000);
  write_counter("intel-rapl:1", "package-1", 2'000'000);
  write_counter("intel-rapl:0:0", "core", 0);
  write_counter("intel-rapl:2", "psys", 0);
  const auto from = reader();
  EXPECT_NE(from->source().find("RAPL"), std::string::npos);
  expect_energy(
      *from,
      [this] {
        write_counter("intel-rapl:0", "package-0", 4'000'000);
        write_counter("intel-rapl:1", "package-1", 4'500'000);
        write_counter("intel-rapl:0:0", "core", 9'000'000);
        write_counter("intel-rapl:2", "psys", 9'000'000);
      },
      5.5);
}

TEST_F(CpuReaderTest, TheEnergyCounterMayStartAnew) {
  write_counter("intel-rapl:0", "package-0", 9'000'000);
  expect_energy(
      *reader(), [this] { write_counter("intel-rapl:0", "package-0", 1'000'000); }, 2);
}

TEST_F(CpuReaderTest, ACounterThatCannotBeFollowedIsAbsent) {
  write_counter("intel-rapl:0", "package-0", 1'000'000);
  write("sys/class/powercap/intel-rapl:1/name", "package-1");  // root alone may read its counter
  const auto from = reader();
  EXPECT_TRUE(from->read().power_watts.has_value());
  const fs::path counter = sources_.sys / "class/powercap/intel-rapl:0/energy_uj";
  fs::remove(counter);
  EXPECT_FALSE(from->read().power_watts.has_value());
  std::ofstream(counter) << 5'000'000;
  EXPECT_FALSE(from->read().power_watts.has_value()) << "since when is not known";
  std::ofstream(counter) << 6'000'000;
  EXPECT_TRUE(from->read().power_watts.has_value());
}

TEST(ProcessorsOfProcessTest, AThreadBoundToOneProcessorHidesNoneOfTheOthers) {
  const std::vector<int> all = host_machine::usable_processors();
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(std::ranges::is_sorted(all));
  std::vector<int> seen_by_bound_thread;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(all.front(), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    seen_by_bound_thread = host_machine::usable_processors();
  }).join();
  EXPECT_EQ(seen_by_bound_thread, all);
}

TEST(ProcessorsOfProcessTest, WhatOpenMpBindsThreadsToCounts) {
  // In a process that begins with bound threads, as thread_pinning makes it do.
  const std::vector<int> all = host_machine::usable_processors();
  const char* variable = "TINY_LLAMA_TEST_EXPECTED_PROCESSORS";
  if (const char* expected = std::getenv(variable)) {
    EXPECT_EQ(std::to_string(all.size()), expected);
    return;
  }
  if (all.size() < 2) GTEST_SKIP() << "needs two processors";
  const std::string command =
      "OMP_PROC_BIND=true " + std::string(variable) + "=" + std::to_string(all.size()) + " '" +
      fs::read_symlink("/proc/self/exe").string() +
      "' --gtest_filter=ProcessorsOfProcessTest.WhatOpenMpBindsThreadsToCounts > /dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(CpuReaderCostTest, ALookCostsLessThanOnePercentOfTheDefaultInterval) {
  const auto from = cpu_reader({}, host_machine::usable_processors());
  constexpr int looks = 50;
  const double before = process_seconds();
  for (int look = 0; look < looks; ++look) from->read();
  EXPECT_LT((process_seconds() - before) / looks, 0.001);
}

}  // namespace
}  // namespace tinyllama::instruments

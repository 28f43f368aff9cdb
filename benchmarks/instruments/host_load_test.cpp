#include "benchmarks/instruments/host_load.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <thread>

#include "benchmarks/instruments/host_machine.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

using std::chrono::milliseconds;

// Ticks since the start of every usable processor, and of one that we may not use.
std::string statistics(double busy, double stolen) {
  std::string text = "cpu  1 2 3 4 5 6 7 8 9 10\n";
  const auto line = [&](int number, double user, double steal) {
    text += fmt::format("cpu{} {:.0f} 0 0 500 0 0 0 {:.0f} 0 0\n", number, user, steal);
  };
  for (const int processor : host_machine::usable_processors()) line(processor, busy, stolen);
  line(9999, 1e6, 1e6);
  return text + "intr 1 2 3\n";
}

TEST(HostLoadTest, BusyTimeThatIsNotOursIsTheOthers) {
  const auto processors = static_cast<double>(host_machine::usable_processors().size());
  const testing::TemporaryFolder files;
  files.write("stat", statistics(1000, 100));
  const auto start = std::chrono::steady_clock::now();
  const HostWatch watch(files / "stat");
  std::this_thread::sleep_for(milliseconds(50));
  const double ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  // a quarter of a second of each
  files.write("stat", statistics(1000 + ticks / 4, 100 + ticks / 4));
  const HostLoad load = watch.so_far();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  EXPECT_GE(load.seconds, 0.05);
  EXPECT_LE(load.seconds, passed.count());
  EXPECT_NEAR(load.stolen * load.seconds, processors / 4, 1e-6);
  // less what this process used meanwhile
  EXPECT_LE(load.others * load.seconds, processors / 4);
  EXPECT_GT(load.others * load.seconds, processors / 4 - 0.1);
  EXPECT_EQ(load.processors, processors);
}

TEST(HostLoadTest, OwnThreadsAreNotTheOthers) {
  const testing::TemporaryFolder files;
  files.write("stat", statistics(1000, 0));
  const HostWatch watch(files / "stat");
  const std::clock_t start = std::clock();
  while (std::clock() - start < CLOCKS_PER_SEC / 5) {
  }
  // of all processors together as much as this thread was busy, or less
  const auto processors = static_cast<double>(host_machine::usable_processors().size());
  const double ticks = static_cast<double>(::sysconf(_SC_CLK_TCK)) / 5 / processors;
  files.write("stat", statistics(1000 + std::floor(ticks), 0));
  EXPECT_EQ(watch.so_far().others, 0);
}

TEST(HostLoadTest, OthersTakeOnlyWhatIsNotFree) {
  const HostLoad load = {.seconds = 1, .processors = 4, .others = 1.5, .stolen = 0.25};
  EXPECT_EQ(load.taken_from(2), 0) << "there is room for them";
  EXPECT_DOUBLE_EQ(load.taken_from(4), 1.75);
  const HostLoad full = {.seconds = 1, .processors = 4, .others = 9, .stolen = 0};
  EXPECT_DOUBLE_EQ(full.taken_from(2), 2) << "no more than all";
}

}  // namespace
}  // namespace tinyllama::instruments

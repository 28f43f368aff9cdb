#include "benchmarks/instruments/timer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tinyllama::instruments {
namespace {

TEST(TimerTest, PreparesBeforeEachRun) {
  std::string calls;
  const auto seconds = time_iterations(
      Device::select("auto"), 3, [&] { calls += 'p'; }, [&] { calls += 'r'; });
  EXPECT_EQ(calls, "prprpr");
  ASSERT_EQ(seconds.size(), 3U);
  EXPECT_TRUE(std::ranges::all_of(seconds, [](double value) { return value >= 0; }));
}

TEST(TimerTest, NoIterationsNoCalls) {
  const auto never = [] { FAIL() << "called"; };
  EXPECT_TRUE(time_iterations(Device::select("cpu"), 0, never, never).empty());
}

TEST(TimerTest, TimesTheRunAndNotThePreparation) {
  volatile double sink = 0;
  const auto work = [&] {
    for (int step = 0; step < 2'000'000; ++step) sink = sink + 1;
  };
  const auto nothing = [] {};
  const Device cpu = Device::select("cpu");
  const auto prepared = time_iterations(cpu, 5, work, nothing);
  const auto timed = time_iterations(cpu, 5, nothing, work);
  EXPECT_LT(*std::ranges::min_element(prepared), *std::ranges::min_element(timed));
}

TEST(TimerTest, ExceptionsPass) {
  EXPECT_THROW(time_iterations(
                   Device::select("cpu"), 1, [] {}, [] { throw std::runtime_error("no"); }),
               std::runtime_error);
}

}  // namespace
}  // namespace tinyllama::instruments

#include "benchmarks/instruments/system_sampler.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <functional>
#include <stdexcept>
#include <vector>

namespace tinyllama::instruments {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class SystemSamplerTest : public ::testing::Test {
 protected:
  /// Answers what the test says, by the number of the look (from 0).
  SystemReader scripted(const std::function<SystemReading(int)>& answer) {
    return {"a script", [this, answer] {
              const SystemReading reading = answer(looks_);
              ++looks_;
              return reading;
            }};
  }
  static void wait_until(const std::function<bool()>& condition) {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (!condition() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_TRUE(condition());
  }
  std::atomic<int> looks_ = 0;
};

TEST_F(SystemSamplerTest, StatisticsAreOfWhatWasReported) {
  const std::vector<SystemReading> script = {
      {{"utilization_percent", 10}, {"clock_MHz", 2}},
      {{"utilization_percent", 60}, {"clock_MHz", 2}, {"power_watts", 250.5}},
      {{"utilization_percent", 20}}};
  SystemSampler sampler(scripted([&](int look) {
                          return look < 3 ? script[static_cast<size_t>(look)] : SystemReading();
                        }),
                        milliseconds(2));
  wait_until([&] { return looks_ >= 4; });
  const SystemSamples samples = sampler.stop();
  const int looks = looks_;
  EXPECT_EQ(samples.source, "a script");
  EXPECT_DOUBLE_EQ(samples.interval_seconds, 0.002);
  const ReadingStatistics& use = samples.readings.at("utilization_percent");
  EXPECT_EQ(use.minimum, 10);
  EXPECT_DOUBLE_EQ(use.mean, 30);
  EXPECT_EQ(use.maximum, 60);
  EXPECT_EQ(use.samples, 3);
  EXPECT_EQ(samples.readings.at("clock_MHz").samples, 2);
  EXPECT_FALSE(samples.readings.contains("temperature_celsius"));
  EXPECT_EQ(samples.readings.at("power_watts").samples, 1);
  EXPECT_DOUBLE_EQ(samples.readings.at("power_watts").minimum, 250.5);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(looks_, looks) << "looked after stop()";
}

TEST_F(SystemSamplerTest, PowerIsOfTheEnergyWhereOnlyThatIsTold) {
  SystemSampler sampler(scripted([](int look) {
                          return SystemReading{{"energy_joules", 1000.0 * look}};
                        }),
                        milliseconds(2));
  wait_until([&] { return looks_ >= 4; });
  const ReadingStatistics power = sampler.stop().readings.at("power_watts");
  EXPECT_EQ(power.samples, looks_ - 1);
  EXPECT_GT(power.minimum, 0);
  EXPECT_LE(power.minimum, power.mean);
  EXPECT_LE(power.mean, power.maximum);
}

TEST_F(SystemSamplerTest, ARunShorterThanTheIntervalIsLookedAtOnce) {
  const auto start = Clock::now();
  SystemSampler sampler(scripted([](int) {
                          return SystemReading{{"utilization_percent", 42}};
                        }),
                        milliseconds(60'000));
  const SystemSamples samples = sampler.stop();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20)) << "stop() waited for the interval";
  EXPECT_EQ(samples.readings.at("utilization_percent").samples, 1);
  EXPECT_EQ(sampler.stop().readings.at("utilization_percent").samples, 1);
  EXPECT_EQ(looks_, 1);
}

TEST_F(SystemSamplerTest, CostlyLooksAreTakenSeldom) {
  // 3 ms of processor time a look: with a pause of 300 ms after each, 3 fit into 700 ms. A busy
  // machine sleeps longer, so that the time is measured.
  const auto start = Clock::now();
  SystemSampler sampler(scripted([](int) {
                          // Of the whole process, whose other thread sleeps.
                          const std::clock_t begin = std::clock();
                          while (std::clock() - begin < 3 * CLOCKS_PER_SEC / 1000) continue;
                          return SystemReading{{"utilization_percent", 1}};
                        }),
                        milliseconds(10));
  std::this_thread::sleep_for(milliseconds(700));
  const auto samples = sampler.stop();
  const auto pauses = (Clock::now() - start) / milliseconds(300);
  EXPECT_GE(samples.readings.at("utilization_percent").samples, 1);
  EXPECT_LE(samples.readings.at("utilization_percent").samples, 1 + pauses);
}

TEST_F(SystemSamplerTest, AReaderThatFailsEndsTheLookingAndNotTheRun) {
  std::atomic<bool> has_failed = false;
  SystemSampler sampler(scripted([&](int look) -> SystemReading {
                          if (look < 2) return {{"utilization_percent", 1}};
                          has_failed = true;
                          throw std::runtime_error("the card fell off the bus");
                        }),
                        milliseconds(1));
  wait_until([&] { return has_failed.load(); });
  const SystemSamples samples = sampler.stop();
  EXPECT_EQ(samples.source, "a script (ended: the card fell off the bus)");
  EXPECT_EQ(samples.readings.at("utilization_percent").samples, 2);
}

TEST_F(SystemSamplerTest, PowerCountsFromTheFirstLookThatTellsOfEnergy) {
  SystemSampler sampler(
      scripted([](int look) {
        return look == 0 ? SystemReading() : SystemReading{{"energy_joules", 1e6}};
      }),
      milliseconds(1));
  wait_until([&] { return looks_ >= 4; });
  EXPECT_EQ(sampler.stop().readings.at("power_watts").mean, 0);
}

TEST(SystemSamplerOfADeviceTest, TheProcessorTellsItsUseAndAGpuItsTemperatureOrWhyNot) {
  for (const Device& device : {Device::select("cpu"), Device::select("auto")}) {
    SystemSampler sampler(system_reader(device), milliseconds(5));
    std::this_thread::sleep_for(milliseconds(20));
    const SystemSamples samples = sampler.stop();
    if (device.is_gpu()) {
      EXPECT_TRUE(samples.readings.contains("temperature_celsius") ||
                  samples.source.starts_with("none"))
          << samples.source;
    } else {
      EXPECT_LE(samples.readings.at("utilization_percent").maximum, 100);
      EXPECT_TRUE(samples.source.starts_with("getrusage")) << samples.source;
    }
  }
}

}  // namespace
}  // namespace tinyllama::instruments

#include "benchmarks/instruments/system_sampler.hpp"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <utility>

namespace tinyllama::instruments {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

/// Answers what the test says, by the number of the look (from 0).
class ScriptedReader : public SystemReader {
 public:
  ScriptedReader(std::function<SystemReading(int)> answer, std::atomic<int>& looks)
      : answer_(std::move(answer)), looks_(looks) {}
  SystemReading read() override {
    const SystemReading reading = answer_(looks_);
    ++looks_;
    return reading;
  }
  std::string source() const override { return "a script"; }

 private:
  std::function<SystemReading(int)> answer_;
  std::atomic<int>& looks_;
};

class SystemSamplerTest : public ::testing::Test {
 protected:
  std::unique_ptr<SystemReader> scripted(std::function<SystemReading(int)> answer) {
    return std::make_unique<ScriptedReader>(std::move(answer), looks_);
  }
  static void wait_until(const std::function<bool()>& condition) {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (!condition() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_TRUE(condition());
  }
  void wait_for_looks(int count) const {
    wait_until([&] { return looks_ >= count; });
  }
  std::atomic<int> looks_ = 0;
};

TEST_F(SystemSamplerTest, StatisticsAreOfWhatWasReported) {
  SystemSampler sampler(scripted([](int look) {
                          SystemReading reading;
                          if (look == 0) reading.utilization_percent = 10;
                          if (look == 1) reading.utilization_percent = 60;
                          if (look == 2) reading.utilization_percent = 20;
                          if (look == 1) reading.power_watts = 250.5;
                          return reading;
                        }),
                        milliseconds(2));
  wait_for_looks(4);
  const SystemSamples samples = sampler.stop();
  EXPECT_EQ(samples.source, "a script");
  EXPECT_DOUBLE_EQ(samples.interval_seconds, 0.002);
  ASSERT_EQ(samples.readings.size(), 2u) << "absent readings are absent";
  const ReadingStatistics& use = samples.readings.at("utilization_percent");
  EXPECT_EQ(use.minimum, 10);
  EXPECT_DOUBLE_EQ(use.mean, 30);
  EXPECT_EQ(use.maximum, 60);
  EXPECT_EQ(use.samples, 3);
  const ReadingStatistics& power = samples.readings.at("power_watts");
  EXPECT_EQ(power.samples, 1);
  EXPECT_DOUBLE_EQ(power.minimum, 250.5);
  EXPECT_DOUBLE_EQ(power.maximum, 250.5);
}

TEST_F(SystemSamplerTest, EveryKindOfReadingHasItsName) {
  SystemSampler sampler(scripted([](int) { return SystemReading{1, 2, 3, 4}; }), milliseconds(1));
  wait_for_looks(2);
  const auto readings = sampler.stop().readings;
  EXPECT_EQ(readings.at("utilization_percent").mean, 1);
  EXPECT_EQ(readings.at("clock_MHz").mean, 2);
  EXPECT_EQ(readings.at("temperature_celsius").mean, 3);
  EXPECT_EQ(readings.at("power_watts").mean, 4);
}

TEST_F(SystemSamplerTest, ARunShorterThanTheIntervalIsLookedAtOnce) {
  const auto start = Clock::now();
  SystemSampler sampler(scripted([](int) { return SystemReading{42}; }), milliseconds(60'000));
  const SystemSamples samples = sampler.stop();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20)) << "stop() waited for the interval";
  EXPECT_EQ(samples.readings.at("utilization_percent").samples, 1);
  EXPECT_EQ(sampler.stop().readings.at("utilization_percent").samples, 1);
  EXPECT_EQ(looks_, 1);
}

TEST_F(SystemSamplerTest, StopEndsTheLooking) {
  SystemSampler sampler(scripted([](int) { return SystemReading{1}; }), milliseconds(1));
  wait_for_looks(2);
  sampler.stop();
  const int looks = looks_;
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(looks_, looks);
}

TEST_F(SystemSamplerTest, CostlyLooksAreTakenSeldom) {
  // 3 ms of processor time a look: with a pause of 300 ms after each, 3 fit into 700 ms. A busy
  // machine sleeps longer, so that the time is measured.
  const auto start = Clock::now();
  SystemSampler sampler(
      scripted([](int) {
        timespec begin{};
        timespec now{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        do {
          ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        } while ((now.tv_sec - begin.tv_sec) * 1'000'000'000 + now.tv_nsec - begin.tv_nsec <
                 3'000'000);
        return SystemReading{1};
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
                          if (look < 2) return {1};
                          has_failed = true;
                          throw std::runtime_error("the card fell off the bus");
                        }),
                        milliseconds(1));
  wait_until([&] { return has_failed.load(); });
  const SystemSamples samples = sampler.stop();
  EXPECT_EQ(samples.source, "a script (ended: the card fell off the bus)");
  EXPECT_EQ(samples.readings.at("utilization_percent").samples, 2);
}

TEST_F(SystemSamplerTest, RefusesAnIntervalThatIsNone) {
  const auto nothing = [](int) { return SystemReading{}; };
  EXPECT_THROW(SystemSampler(scripted(nothing), milliseconds(0)), std::invalid_argument);
  EXPECT_THROW(SystemSampler(scripted(nothing), milliseconds(-5)), std::invalid_argument);
}

TEST(SystemSamplerOfADeviceTest, TheProcessorTellsItsUse) {
  SystemSampler sampler(Device::select("cpu"), milliseconds(5));
  std::this_thread::sleep_for(milliseconds(20));
  const SystemSamples samples = sampler.stop();
  const ReadingStatistics& use = samples.readings.at("utilization_percent");
  EXPECT_GE(use.minimum, 0);
  EXPECT_LE(use.maximum, 100);
  EXPECT_EQ(samples.source.find("getrusage"), 0u) << samples.source;
}

TEST(SystemSamplerOfADeviceTest, AGpuTellsItsTemperatureOrWhyNot) {
  const Device device = Device::select("auto");
  if (!device.is_gpu()) GTEST_SKIP() << "needs a GPU";
  SystemSampler sampler(device, milliseconds(5));
  std::this_thread::sleep_for(milliseconds(20));
  const SystemSamples samples = sampler.stop();
  EXPECT_TRUE(samples.readings.contains("temperature_celsius") ||
              samples.source.starts_with("none"))
      << samples.source;
}

}  // namespace
}  // namespace tinyllama::instruments

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
  std::atomic<int> looks_ = 0;
};

TEST_F(SystemSamplerTest, StatisticsAreOfWhatWasReported) {
  SystemSampler sampler(scripted([](int look) -> SystemReading {
                          if (look == 0) return {10, 2, 3};
                          if (look == 1) return {60, 2, 3, 250.5};
                          if (look == 2) return {20};
                          return {};
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
  EXPECT_EQ(samples.readings.at("temperature_celsius").mean, 3);
  EXPECT_EQ(samples.readings.at("power_watts").samples, 1);
  EXPECT_DOUBLE_EQ(samples.readings.at("power_watts").minimum, 250.5);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(looks_, looks) << "looked after stop()";
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

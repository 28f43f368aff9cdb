#include "benchmarks/harness/timing.hpp"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <thread>

#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/metering.hpp"
#include "benchmarks/harness/testing.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "core/statistics.hpp"

namespace tinyllama::harness {
namespace {

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::kByte);
}

// Does what it is told, and writes down when: 'p' for prepare, 'r' for run.
class ScriptedWork final : public WorkItem {
 public:
  explicit ScriptedWork(std::function<void(int)> on_run = {}, std::function<void()> on_prepare = {})
      : on_run_(std::move(on_run)), on_prepare_(std::move(on_prepare)) {}
  void prepare() override {
    calls += 'p';
    if (on_prepare_) on_prepare_();
  }
  void run() override {
    calls += 'r';
    if (on_run_) on_run_(runs++);
  }
  NamedTensors results() const override { return {}; }

  std::string calls;
  int runs = 0;

 private:
  std::function<void(int)> on_run_;
  std::function<void()> on_prepare_;
};

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

class MeasureTest : public ::testing::Test {
 protected:
  Metering metered(std::function<void(int)> on_run, std::function<void()> on_prepare = {},
                   int64_t other_bytes = 0) const {
    return meter(cpu, {std::make_unique<ScriptedWork>(on_run, on_prepare), other_bytes});
  }
  std::vector<double> seconds_of(WorkItem& work, const TimingGoal& goal) const {
    return time_until(cpu, work, nullptr, goal).seconds;
  }

  instruments::Device cpu = instruments::Device::select("cpu");
};

TEST_F(MeasureTest, PeakIsTheSumOfTheLiveTensorsToTheByte) {
  const at::Tensor other = bytes(1'234'567);
  const int64_t other_bytes = instruments::host_allocator::read().live_bytes;
  const at::Tensor weights = bytes(1'001);
  at::Tensor prepared, output;
  const Metering metering = metered(
      [&](int) {
        output = bytes(300);
        bytes(50'000).reset();
        const at::Tensor temporary = bytes(40'000);
        const at::Tensor second_temporary = bytes(10'003);
      },
      [&] {
        output.reset();
        prepared = bytes(70);
      },
      other_bytes);
  EXPECT_EQ(metering.peak_bytes, 1'001 + 70 + 300 + 40'000 + 10'003);
  // What prepare() allocates is not the iteration's.
  EXPECT_EQ(metering.allocations, 4);
  EXPECT_FALSE(metering.profile.kernels);
}

TEST_F(MeasureTest, CountsTheOperatorsOfRunAlone) {
  at::Tensor x = at::empty({8}, at::kFloat).fill_(1);
  const at::Tensor y = at::empty({8}, at::kFloat).fill_(2);
  const auto three = [&](int) { x.add_(y).mul_(y).neg_(); };
  EXPECT_EQ(metered(three, [&] { x.copy_(y); }).operators, 3);
  const Metering metering = metered({});
  EXPECT_EQ(metering.operators, 0);
  EXPECT_EQ(metering.allocations, 0);
}

TEST_F(MeasureTest, WarmUpEndsOnceTwoIterationsAllocateAlikeOrNeverWill) {
  ScriptedWork settled;
  warm_up(cpu, settled, 0, 1e9);
  EXPECT_EQ(settled.calls, "prpr");
  const auto iterations = [&](const std::function<int(int run)>& allocations) {
    ScriptedWork work([&](int run) {
      for (int i = 0; i < allocations(run); ++i) bytes(100).reset();
    });
    warm_up(cpu, work, 0, 1e9);
    return work.runs;
  };
  EXPECT_EQ(iterations([](int run) { return std::max(1, 4 - run); }), 5) << "4, 3, 2, 1, 1";
  EXPECT_EQ(iterations([](int run) { return run; }), 10);
}

TEST_F(MeasureTest, WarmUpTakesItsTimeHoweverShortAnIterationIs) {
  ScriptedWork quick([](int) {});
  const auto start = std::chrono::steady_clock::now();
  warm_up(cpu, quick, 0.02, 1e9);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
  EXPECT_GT(quick.runs, 10);
}

TEST_F(MeasureTest, WarmUpEndsWhenTheTimeIsUp) {
  ScriptedWork work([](int) {});
  EXPECT_GE(warm_up(cpu, work, 1e9, 0), 0);
  EXPECT_EQ(work.runs, 1);
}

TEST_F(MeasureTest, WarmUpReturnsTheTimeOfTheLastIteration) {
  ScriptedWork work([](int run) {
    if (run == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  const double first = seconds_of(work, {.most_iterations = 1}).front();
  EXPECT_LT(warm_up(cpu, work, 0, 1e9), first);
}

TEST_F(MeasureTest, TimesEveryRunAndPreparesEachOnce) {
  ScriptedWork work;
  const auto seconds = seconds_of(work, {.min_seconds = kUnlimited, .most_iterations = 4});
  EXPECT_EQ(work.calls, "prprprpr");
  ASSERT_EQ(seconds.size(), 4U);
  for (const double value : seconds) EXPECT_GE(value, 0);
}

TEST_F(MeasureTest, TimesUntilTheSamplesMakeUpTheMinimum) {
  ScriptedWork work([](int) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); },
                    [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  const auto seconds = seconds_of(work, {.min_seconds = 0.02});
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  EXPECT_GE(total, 0.02);
  EXPECT_LT(total - seconds.back(), 0.02) << "not one more; preparation does not count";
}

TEST_F(MeasureTest, GoesOnUntilTheMedianIsKnownPreciselyEnough) {
  // Long and short by turns, and after a while all alike: the median is that of the alike ones.
  ScriptedWork work([](int run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(run < 8 ? 1 + 2 * (run % 2) : 2));
  });
  const TimingGoal goal{.min_seconds = 1e-9, .precision = 0.25};
  const auto seconds = seconds_of(work, goal);
  EXPECT_GE(seconds.size(), 6U) << "fewer have no interval";
  EXPECT_LE(steadiness(seconds).value(), goal.precision);
}

TEST_F(MeasureTest, TheSearchForAPrecisionIsTimingAndNotSorting) {
  // On the thread's own clock, which what other programs take from it is not in. Times that a clock
  // cannot tell apart would be as precise as anything.
  constexpr double mean = 12e-6;
  ScriptedWork work([](int run) {
    const double end = thread_cpu_seconds() + (run % 2 == 0 ? 1.5 : 0.5) * mean;
    while (thread_cpu_seconds() < end) continue;
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  const Timing timing =
      time_until(cpu, work, nullptr, {.precision = 1e-9, .precision_deadline = deadline});
  EXPECT_LT(timing.cpu_seconds, 2 * mean);
}

TEST_F(MeasureTest, DeadlinesEndATimingAfterTheIterationInHand) {
  const auto now = std::chrono::steady_clock::now();
  for (const TimingGoal& goal : {TimingGoal{.precision = 1e-9, .precision_deadline = now},
                                 TimingGoal{.min_seconds = kUnlimited, .deadline = now}}) {
    ScriptedWork work;
    EXPECT_EQ(seconds_of(work, goal).size(), 1U);
    EXPECT_EQ(work.calls, "pr");
  }
}

TEST_F(MeasureTest, AColdCacheIsMadeBetweenPrepareAndRun) {
  const int64_t before = instruments::host_allocator::read().live_bytes;
  CacheFlusher flusher(cpu);
  EXPECT_GE(flusher.bytes(), 2 * cpu.description().last_level_cache_bytes);
  EXPECT_EQ(instruments::host_allocator::read().live_bytes, before) << "no part of a memory limit";
  ScriptedWork work;
  time_until(cpu, work, &flusher, {.min_seconds = kUnlimited, .most_iterations = 2});
  EXPECT_EQ(work.calls, "prpr");
}

TEST(FailureTest, NothingOfABackwardThatFailedStaysAlive) {
  const instruments::Device cpu = instruments::Device::select("cpu");
  const int64_t before = instruments::host_allocator::read().live_bytes;
  const std::string failure = failure_of(cpu, 0, [] {
    const at::Tensor x = at::ones({64, 1024}).set_requires_grad(true);
    const at::Tensor sum = x.exp().sum() + x.sin().sum() + x.cos().sum();
    const AllocationLimit nothing_more(instruments::host_allocator::read().live_bytes + 64);
    sum.backward();
  });
  EXPECT_CONTAINS(failure, "out of memory");
  EXPECT_EQ(instruments::host_allocator::read().live_bytes, before);
}

TEST(GpuTimingTest, ShortWorkIsTimedSeveralRunsAtOnce) {
  EXPECT_EQ(runs_of_a_gpu_sample(20e-6), 3);
  EXPECT_EQ(runs_of_a_gpu_sample(1e-3), 1);
  EXPECT_EQ(runs_of_a_gpu_sample(0), 100) << "faster than events tell";
}

TEST(GpuTimingTest, ADeviceThatIsIdleForATenthWaitsForItsHost) {
  EXPECT_TRUE(waits_for_host(10e-6, 8.9e-6));
  EXPECT_FALSE(waits_for_host(10e-6, 9.1e-6));
  EXPECT_FALSE(waits_for_host(10e-6, 11e-6)) << "streams side by side";
}

}  // namespace
}  // namespace tinyllama::harness

#include "benchmarks/instruments/hardware_counters.hpp"

#include <gtest/gtest.h>
#include <linux/perf_event.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "benchmarks/instruments/host_machine.hpp"

namespace tinyllama::instruments {
namespace {

// The kernel's own counter of a thread's time, in ns, which virtual machines have as well.
const std::vector<HardwareEvent> kTaskClock = {
    {"task_clock", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK}};

void work_for(double seconds) {
  const double begin = host_machine::process_seconds();
  while (host_machine::process_seconds() - begin < seconds) {
  }
}

TEST(HardwareCountersTest, CountsWhatAllThreadsDo) {
  const std::string lack = why_no_counts(kTaskClock);
  if (!lack.empty()) GTEST_SKIP() << lack;
  // One that is there before the count begins, as those of OpenMP are, and one that comes later.
  std::atomic<bool> starts = false;
  std::thread before([&] {
    while (!starts) std::this_thread::yield();
    work_for(0.05);
  });
  const double begin = host_machine::process_seconds();
  const HardwareCounts found = count_events(
      [&] {
        starts = true;
        before.join();
        std::thread([] { work_for(0.05); }).join();
        work_for(0.05);
      },
      kTaskClock);
  const double passed = host_machine::process_seconds() - begin;
  EXPECT_EQ(found.lack, "");
  EXPECT_GE(found.counts.at("task_clock") * 1e-9, 0.14);
  EXPECT_LE(found.counts.at("task_clock") * 1e-9, passed + 0.01);
}

TEST(HardwareCountersTest, WorkRunsOnceWhateverCanBeCounted) {
  int runs = 0;
  const HardwareCounts none =
      count_events([&] { ++runs; }, {{"no such event", PERF_TYPE_SOFTWARE, 1u << 20}});
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(none.counts.empty());
  EXPECT_TRUE(none.lack.starts_with("perf_event_open of no such event: ")) << none.lack;
  EXPECT_THROW(count_events([] { throw std::runtime_error("of the work"); }, kTaskClock),
               std::runtime_error);
}

TEST(HardwareCountersTest, OfTheProcessorOrWhyNot) {
  double sum = 0;
  const HardwareCounts found = count_events([&] {
    for (int i = 0; i < 1'000'000; ++i) sum += static_cast<double>(i) * sum;
  });
  ASSERT_NE(found.lack.empty(), found.counts.empty());
  if (!found.lack.empty()) GTEST_SKIP() << found.lack;
  EXPECT_GE(found.counts.at("instructions"), 2e6);
  EXPECT_GT(found.counts.at("cycles"), 0);
  EXPECT_GE(found.counts.at("cache_misses"), 0);
}

}  // namespace
}  // namespace tinyllama::instruments

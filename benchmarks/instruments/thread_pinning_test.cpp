// Which processors threads run on where OpenMP binds its own, as pin_openmp_threads() makes it do.
#include "benchmarks/instruments/thread_pinning.hpp"

#include <ATen/ops/ones.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>

#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/system_sampler.hpp"

// A kind of GPU, so that autograd has threads to start.
namespace c10::impl {
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuardImpl<DeviceType::PrivateUse1>)
}

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;

/// "0,1,": the processors that a thread (0: the calling one) may run on.
std::string processors_of(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(thread, sizeof set, &set), 0) << thread;
  std::string text;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) text += std::to_string(processor) + ",";
  }
  return text;
}

/// Of every thread of this process, by its number.
std::map<pid_t, std::string> processors_of_threads() {
  std::map<pid_t, std::string> all;
  for (const auto& entry : fs::directory_iterator("/proc/self/task")) {
    const pid_t thread = std::stoi(entry.path().filename().string());
    all[thread] = processors_of(thread);
  }
  return all;
}

/// Runs the test that is running once more, in a process where OpenMP binds threads.
void run_bound(const std::string& variable) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string command =
      fmt::format("env -u OMP_NUM_THREADS OMP_PROC_BIND=true {}={} '{}' --gtest_filter={}.{} >&2",
                  variable, processors_of(0), fs::read_symlink("/proc/self/exe").string(),
                  test->test_suite_name(), test->name());
  EXPECT_EQ(std::system(command.c_str()), 0);
}

/// Starts what `start` starts, and looks at the new threads and at those that were there.
void expect_new_threads_on_all_processors(const std::function<void()>& start) {
  if (host_machine::usable_processors().size() < 2) GTEST_SKIP() << "needs two processors";
  const char* variable = "TINY_LLAMA_TEST_PROCESSORS";
  const char* before = std::getenv(variable);
  if (before == nullptr) return run_bound(variable);
  at::ones({1 << 20}).sum();  // in several threads
  const auto timed = processors_of_threads();
  ASSERT_GT(timed.size(), 1U);
  start();
  size_t others = 0;
  for (const auto& [thread, processors] : processors_of_threads()) {
    if (timed.contains(thread)) {
      EXPECT_EQ(std::ranges::count(processors, ','), 1) << processors;
    } else {
      EXPECT_EQ(processors, before);
      ++others;
    }
  }
  EXPECT_GT(others, 0U);
}

TEST(BoundThreadsTest, TheSamplerRunsOnAllProcessors) {
  std::optional<SystemSampler> sampler;
  expect_new_threads_on_all_processors([&] { sampler.emplace(Device::select("cpu")); });
}

TEST(BoundThreadsTest, AutogradsThreadsRunOnAllProcessors) {
  expect_new_threads_on_all_processors(start_autograd_threads);
}

}  // namespace
}  // namespace tinyllama::instruments

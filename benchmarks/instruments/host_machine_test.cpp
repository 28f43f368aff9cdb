// What the kernel says of processors and memory, and which processors threads run on where OpenMP
// binds its own, as pin_openmp_threads() makes it do.
#include "benchmarks/instruments/host_machine.hpp"

#include <ATen/ops/ones.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include "benchmarks/instruments/system_sampler.hpp"
#include "tests/fuzzing/file_testing.hpp"

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
  EXPECT_EQ(host_machine::usable_processors().size(), std::ranges::count(std::string(before), ','))
      << "those that OpenMP binds threads to count";
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
  expect_new_threads_on_all_processors(
      [&] { sampler.emplace(system_reader(Device::select("cpu"))); });
}

TEST(BoundThreadsTest, AutogradsThreadsRunOnAllProcessors) {
  expect_new_threads_on_all_processors(start_autograd_threads);
}

TEST(ProcessorNameTest, TellsGenerationsOfOneNameApart) {
  const testing::TemporaryFolder files;
  const auto name_of = [&](const std::string& cpuinfo) {
    files.write("cpuinfo", cpuinfo);
    return host_machine::processor_name(files / "cpuinfo");
  };
  const std::string zen4 =
      "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nflags\t\t:\n\n"
      "processor\t: 1\nmodel\t\t: 99";
  EXPECT_EQ(name_of(zen4), "AMD EPYC family 25 model 17");
  EXPECT_EQ(name_of("cpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7763"),
            "AMD EPYC 7763");
  EXPECT_EQ(name_of("model name\t: Some Processor"), "Some Processor");
  EXPECT_TRUE(name_of("processor\t: 0\nBogoMIPS\t: 50.00").ends_with(" processor"));
}

TEST(LastLevelCacheTest, IsWhatTheProcessorsOfTheThreadsReach) {
  // Two core complexes of two processors each, as on an EPYC.
  const testing::TemporaryFolder files;
  for (int processor = 0; processor < 4; ++processor) {
    const auto file = [&](int index, const char* name) {
      return fmt::format("cpu{}/cache/index{}/{}", processor, index, name);
    };
    files.write(file(0, "level"), "1");
    files.write(file(0, "type"), "Data");
    files.write(file(0, "size"), "32K");
    files.write(file(0, "shared_cpu_list"), std::to_string(processor));
    files.write(file(1, "level"), "3");
    files.write(file(1, "type"), "Unified");
    files.write(file(1, "size"), "32M");
    files.write(file(1, "shared_cpu_list"), processor < 2 ? "0-1" : "2-3");
  }
  const auto bytes = [&](const std::vector<int>& processors) {
    return host_machine::last_level_cache_bytes(processors, files / ".");
  };
  EXPECT_EQ(bytes({0}), 32 << 20);
  EXPECT_EQ(bytes({0, 1}), 32 << 20);
  EXPECT_EQ(bytes({0, 1, 2}), 64 << 20);
  EXPECT_EQ(bytes({7}), 0) << "which the kernel does not list";
}

TEST(ControlGroupTest, TheTightestAncestorLimitsInBothVersions) {
  const auto read = [](const testing::TemporaryFolder& files) {
    return host_machine::control_group_memory(files / "membership", files / "mount");
  };
  const testing::TemporaryFolder none, version_1, version_2;
  EXPECT_EQ(read(none).total_bytes, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(read(none).available_bytes, std::numeric_limits<int64_t>::max());

  version_2.write("membership", "0::/outer/inner");
  version_2.write("mount/outer/memory.max", "1000000");
  version_2.write("mount/outer/memory.current", "400000");
  version_2.write("mount/outer/memory.stat", "anon 1\ninactive_file 100000");
  version_2.write("mount/outer/inner/memory.max", "max");
  EXPECT_EQ(read(version_2).total_bytes, 1'000'000);
  EXPECT_EQ(read(version_2).available_bytes, 700'000);

  version_1.write("membership", "5:devices:/a\n4:cpu,memory:/a\n0::/");
  version_1.write("mount/memory/memory.limit_in_bytes", "9223372036854771712");
  version_1.write("mount/memory/a/memory.limit_in_bytes", "2000000");
  version_1.write("mount/memory/a/memory.usage_in_bytes", "2500000");
  EXPECT_EQ(read(version_1).total_bytes, 2'000'000);
  EXPECT_EQ(read(version_1).available_bytes, 0);
}

TEST(ControlGroupTest, TheTightestQuotaOfProcessorsCounts) {
  const auto read = [](const testing::TemporaryFolder& files) {
    return host_machine::control_group_processors(files / "membership", files / "mount");
  };
  const testing::TemporaryFolder none, version_1, version_2;
  EXPECT_EQ(read(none), std::nullopt);
  version_2.write("membership", "0::/outer/inner");
  version_2.write("mount/outer/cpu.max", "50000 100000");
  version_2.write("mount/outer/inner/cpu.max", "max 100000");
  EXPECT_EQ(read(version_2), 0.5);
  version_2.write("mount/outer/inner/cpu.max", "20000 100000");
  EXPECT_EQ(read(version_2), 0.2);
  version_1.write("membership", "4:cpu,cpuacct:/a\n0::/");
  version_1.write("mount/cpu/cpu.cfs_quota_us", "-1");
  version_1.write("mount/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(read(version_1), std::nullopt);
  version_1.write("mount/cpu/a/cpu.cfs_quota_us", "150000");
  version_1.write("mount/cpu/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(read(version_1), 1.5);
}

TEST(BoundThreadsTest, AThreadBoundToOneProcessorHidesNoneOfTheOthers) {
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

}  // namespace
}  // namespace tinyllama::instruments

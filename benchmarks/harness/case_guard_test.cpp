// What is said, and written, where a step does not end. What plug-ins do is tested with whole
// programs (tests/cli/test_plugins.py).
#include "benchmarks/harness/case_guard.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include <stdexcept>

namespace tinyllama::harness {
namespace {

TEST(CaseGuardTest, AStepThatHangsIsWrittenAndEndsTheProcess) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto hang = [](bool is_case) {
    CaseGuard guard(0.05, {.continued_by = " --resume", .of_hang = "; try --blas rocblas"});
    guard.on_hang([](const std::string& name, const std::string& reason) {
      fmt::print(stderr, "written: {}: {}\n", name, reason);
    });
    guard.run("before", false, [] {});
    const auto step = [] { ::pause(); };
    is_case ? guard.run("a+b/c", false, step) : guard.run_beside_cases("the peaks", step);
  };
  const auto status = ::testing::ExitedWithCode(1);
  EXPECT_EXIT(hang(true), status,
              "a.b/c: has not ended after 0.05 s .--hang-limit.; try --blas rocblas. The program "
              "ends here; leave this case out with --resume --exclude='.a.*b/c.'\n"
              "written: a.b/c: has not ended after 0.05 s .--hang-limit.; try --blas rocblas\n");
  EXPECT_EXIT(hang(false), status,
              "the peaks: has not ended .*rocblas. The program ends here\nwritten: the peaks: ");
}

TEST(CaseGuardTest, ManyStepsTogetherMayTakeLonger) {
  CaseGuard guard(0.2, {});
  for (int step = 0; step < 8; ++step) guard.run("case", false, [] { ::usleep(50'000); });
  EXPECT_THROW(guard.run_beside_cases("peaks", [] { throw std::runtime_error("no"); }),
               std::runtime_error);
  ::usleep(400'000);  // nothing runs
}

TEST(CaseGuardTest, ThereIsOneWhereSomethingMayHang) {
  const auto cpu = instruments::Device::select("cpu");
  Options options;
  EXPECT_EQ(CaseGuard::of(cpu, options), nullptr);
  options.hang_seconds = 5;
  EXPECT_NE(CaseGuard::of(cpu, options), nullptr);
}

}  // namespace
}  // namespace tinyllama::harness

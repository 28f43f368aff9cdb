#include "benchmarks/harness/interleaved.hpp"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "benchmarks/harness/prepared_case.hpp"
#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

// The linear component, which writes its letter down whenever it runs.
Component lettered(char letter, std::string& runs) {
  Component component = testing::linear_component();
  component.build = [letter, &runs](const BuildRequest& request) -> std::unique_ptr<WorkItem> {
    const at::Tensor x = at::ones({4});
    const auto forward = [letter, &runs, x] {
      runs += letter;
      return NamedTensors{{"output", x}};
    };
    return std::make_unique<LayerWork>(Layer{{}, {}, forward, {}}, Pass::forward,
                                       request.workload.dtype, request.device.type());
  };
  return component;
}

class InterleavedTest : public ::testing::Test {
 protected:
  instruments::Device cpu = instruments::Device::select("cpu");
  Options settings;
  std::string runs;
  Component a = lettered('a', runs);
  Component b = lettered('b', runs);
  Case first = testing::small_case(a, Pass::forward);
  Case second = testing::small_case(b, Pass::forward);
};

TEST_F(InterleavedTest, EachCaseHasItsTime) {
  const auto seconds = time_cases_interleaved(cpu, {&first, &second}, settings);
  ASSERT_EQ(seconds.size(), 2U);
  for (const auto& rounds : seconds) {
    ASSERT_EQ(rounds.size(), 9U);
    EXPECT_GT(std::ranges::min(rounds), 0);
  }
  const auto turns = std::ranges::unique(runs);
  runs.erase(turns.begin(), turns.end());
  EXPECT_GT(runs.size(), 5U) << "they take turns";
}

TEST_F(InterleavedTest, NothingWhereTheyDoNotFitTogether) {
  Case one = testing::small_case(a, Pass::forward);
  one.known_memory = PredictedMemory{.weights = int64_t{3} << 20};
  settings.memory_limit_bytes = int64_t{5} << 20;
  EXPECT_TRUE(time_cases_interleaved(cpu, {&one, &one}, settings).empty());
  EXPECT_EQ(runs, "");
}

TEST_F(InterleavedTest, NothingWhereARoundWouldTakeTooLongOrOneFails) {
  settings.max_seconds_per_case = 1e-9;
  EXPECT_TRUE(time_cases_interleaved(cpu, {&first}, settings).empty());
  settings.max_seconds_per_case = 10;
  const Component broken = testing::component_with_build([] { throw std::runtime_error("no"); });
  const Case failing = testing::small_case(broken, Pass::forward);
  EXPECT_TRUE(time_cases_interleaved(cpu, {&first, &failing}, settings).empty());
}

}  // namespace
}  // namespace tinyllama::harness

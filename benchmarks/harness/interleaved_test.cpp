#include "benchmarks/harness/interleaved.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "benchmarks/harness/prepared_case.hpp"
#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

// Writes its letter down whenever it runs.
Component lettered(char letter, std::string& runs) {
  return testing::with_forward([letter, &runs](const at::Tensor& x) {
    runs += letter;
    return x;
  });
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

Json row_of(double milliseconds, const char* aggregate = nullptr) {
  Json entry = {{"real_time", milliseconds}, {"time_unit", "ms"}};
  entry["run_type"] = aggregate ? "aggregate" : "iteration";
  if (aggregate) entry["aggregate_name"] = aggregate;
  return entry;
}

class SpeedupsTest : public ::testing::Test {
 protected:
  void add(const Variant& variant, const Json& entries, int64_t batch = 6) {
    cases.push_back(testing::small_case(component, Pass::forward, Dtype::f32, batch));
    cases.back().workload.variant = variant;
    results.push_back({cases.back().name(), entries});
  }
  double of(size_t result, size_t entry, const char* key = "speedup") const {
    return results.at(result).entries.at(entry).value(key, -1.0);
  }

  const Component component = testing::linear_component();
  const Variant qkv = Variant::parse("qkv");
  const Variant sdpa = Variant::parse("sdpa");
  std::vector<Case> cases;
  std::vector<CaseResult> results;
};

TEST_F(SpeedupsTest, AreOfRoundsOfAllVariantsOfAPoint) {
  // The rows say 5: the machine was another when the baseline was measured. A variant comes first:
  // its baseline is found wherever it is.
  add(qkv, Json::array({row_of(1), row_of(3), row_of(2, "median"), row_of(1, "stddev")}));
  add(Variant(), Json::array({row_of(10)}));
  add(sdpa, Json::array({row_of(2)}));
  std::vector<std::vector<std::string>> timed;
  add_speedups(cases, results, [&](const std::vector<const Case*>& together) {
    timed.emplace_back();
    for (const Case* one : together) timed.back().push_back(one->workload.variant.name());
    return SecondsOfRounds{{1, 2, 3, 4, 5, 6}, {0.5, 1, 1.5, 2, 2.5, 3}, {1, 2, 3, 4, 4, 8}};
  });
  EXPECT_EQ(timed, (std::vector<std::vector<std::string>>{{"baseline", "qkv", "sdpa"}}));
  for (const size_t entry : {0, 1, 2}) EXPECT_DOUBLE_EQ(of(0, entry), 2) << entry;
  EXPECT_DOUBLE_EQ(of(0, 0, "speedup_low"), 2);
  EXPECT_DOUBLE_EQ(of(0, 0, "speedup_high"), 2);
  EXPECT_EQ(of(0, 3), -1) << "a spread has none";
  EXPECT_EQ(of(1, 0), 1);
  EXPECT_EQ(of(1, 0, "speedup_low"), -1) << "the baseline's is 1 by what it means";
  EXPECT_DOUBLE_EQ(of(2, 0), 1);
  EXPECT_DOUBLE_EQ(of(2, 0, "speedup_low"), 0.75);
  EXPECT_DOUBLE_EQ(of(2, 0, "speedup_high"), 1.25);
}

TEST_F(SpeedupsTest, OfFewRoundsHaveNoInterval) {
  add(qkv, Json::array({row_of(1)}));
  add(Variant(), Json::array({row_of(1)}));
  add_speedups(cases, results, [](const auto& /*together*/) {
    return SecondsOfRounds{{1, 2, 4}, {0.5, 1, 2}};
  });
  EXPECT_DOUBLE_EQ(of(0, 0), 2);
  EXPECT_EQ(of(0, 0, "speedup_low"), -1);
}

TEST_F(SpeedupsTest, AreOfTheRowsWhereTheyCouldNotBeTimedTogether) {
  add(qkv, Json::array({row_of(5)}));
  add(Variant(), Json::array({row_of(9), row_of(11), row_of(10, "median")}));
  add_speedups(cases, results, [](const auto& /*together*/) { return SecondsOfRounds(); });
  EXPECT_DOUBLE_EQ(of(0, 0), 2);
  EXPECT_EQ(of(0, 0, "speedup_low"), -1);
}

TEST_F(SpeedupsTest, NeedABaselineOfTheSamePoint) {
  add(qkv, Json::array({row_of(5)}));
  add(Variant(), Json::array({row_of(10)}), 4);
  add(qkv, Json::array({row_of(5)}), 8);
  add(Variant(), Json::array({{{"skipped", true}, {"skip_message", "too large"}}}), 8);
  add_speedups(cases, results, [](const auto& /*together*/) -> SecondsOfRounds {
    ADD_FAILURE() << "there is nothing to compare";
    return {};
  });
  EXPECT_EQ(of(0, 0), -1);
  EXPECT_EQ(of(1, 0), 1);
  EXPECT_EQ(of(2, 0), -1);
  EXPECT_EQ(results[3].entries[0].size(), 2U);
}

}  // namespace
}  // namespace tinyllama::harness

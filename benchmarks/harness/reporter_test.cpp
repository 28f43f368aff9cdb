// Google Benchmark itself runs these cases: what it hands a reporter is its own affair, and
// changes.
#include "benchmarks/harness/reporter.hpp"

#include <gtest/gtest.h>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

using Body = std::function<void(benchmark::State&)>;

void measure(benchmark::State& state) {
  for (auto _ : state) state.SetIterationTime(0.25);
  state.counters["bytes"] = 12;
}

// Fails, or is skipped, from its n-th call on; good before.
Body good_until(int call, const Body& then) {
  return [=, calls = std::make_shared<int>(0)](benchmark::State& state) {
    if ((*calls)++ < call) return measure(state);
    then(state);
  };
}

const Body kFail = [](benchmark::State& state) { state.SkipWithError("wrong result"); };
const Body kInterrupt = [](benchmark::State& state) { state.SkipWithMessage(kInterrupted); };
const Body kSkip = [](benchmark::State& state) { state.SkipWithMessage("does not fit"); };

class ReporterTest : public ::testing::Test {
 protected:
  void TearDown() override { benchmark::ClearRegisteredBenchmarks(); }

  void add(const std::string& name, int repetitions, const Body& body) {
    benchmark::RegisterBenchmark(name,
                                 [this, name, body](benchmark::State& state) {
                                   if (log.empty() || log.back() != "start " + name)
                                     log.push_back("start " + name);
                                   body(state);
                                 })
        ->UseManualTime()
        ->Iterations(2)
        ->Repetitions(repetitions)
        ->Unit(benchmark::kMillisecond);
  }
  void run() {
    CaseReporter reporter([this](CaseResult result) {
      log.push_back("done " + result.name);
      results.push_back(std::move(result));
    });
    benchmark::RunSpecifiedBenchmarks(&reporter, nullptr, ".");
  }
  // How many entries of the case are repetitions ("iteration") or aggregates.
  int64_t count(size_t index, const char* run_type) const {
    const Json& entries = results.at(index).entries;
    return std::count_if(entries.begin(), entries.end(), [&](const Json& entry) {
      return entry.value("run_type", "") == run_type;
    });
  }

  std::vector<std::string> log;
  std::vector<CaseResult> results;
};

TEST_F(ReporterTest, EachCaseIsHandedOnOnceBeforeTheNextStarts) {
  add("one/seq:4", 1, measure);
  add("three", 3, measure);
  add("fails", 1, kFail);
  add("last", 1, measure);
  run();
  EXPECT_EQ(log, std::vector<std::string>({"start one/seq:4", "done one/seq:4", "start three",
                                           "done three", "start fails", "done fails", "start last",
                                           "done last"}));
}

TEST_F(ReporterTest, ARepetitionIsGoogleBenchmarksObject) {
  add("one", 1, measure);
  run();
  ASSERT_EQ(results.size(), 1U);
  ASSERT_EQ(results[0].entries.size(), 1U);
  const Json& entry = results[0].entries[0];
  EXPECT_TRUE(entry.at("name").get<std::string>().starts_with("one/"));
  EXPECT_EQ(entry.at("run_type"), "iteration");
  EXPECT_EQ(entry.at("iterations"), 2);
  EXPECT_DOUBLE_EQ(entry.at("real_time").get<double>(), 250.0);
  EXPECT_EQ(entry.at("time_unit"), "ms");
  EXPECT_EQ(entry.at("bytes"), 12);
}

TEST_F(ReporterTest, RepetitionsComeWithTheirAggregates) {
  add("three", 3, measure);
  run();
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(count(0, "iteration"), 3);
  EXPECT_EQ(count(0, "aggregate"), 4);
  std::vector<std::string> aggregates;
  for (const auto& entry : results[0].entries) {
    if (entry.contains("aggregate_name"))
      aggregates.push_back(entry.at("aggregate_name").get<std::string>());
  }
  EXPECT_EQ(aggregates, std::vector<std::string>({"mean", "median", "stddev", "cv"}));
}

TEST_F(ReporterTest, FailuresAndSkipsAreOneEntryWithTheirReason) {
  add("fails", 3, kFail);
  add("skipped", 3, kSkip);
  run();
  ASSERT_EQ(results.size(), 2U);
  ASSERT_EQ(results[0].entries.size(), 1U);
  EXPECT_EQ(results[0].entries[0].at("error_occurred"), true);
  EXPECT_EQ(results[0].entries[0].at("error_message"), "wrong result");
  ASSERT_EQ(results[1].entries.size(), 1U);
  EXPECT_EQ(results[1].entries[0].at("skipped"), true);
  EXPECT_EQ(results[1].entries[0].at("skip_message"), "does not fit");
}

TEST_F(ReporterTest, AFailureOutweighsRepetitionsThatWentWell) {
  add("fails late", 3, good_until(2, kFail));
  run();
  ASSERT_EQ(results.size(), 1U);
  ASSERT_EQ(results[0].entries.size(), 1U);
  EXPECT_EQ(results[0].entries[0].at("error_message"), "wrong result");
}

TEST_F(ReporterTest, RepetitionsSkippedForTimeLeaveNoEntry) {
  add("one of three", 3, good_until(1, kSkip));
  add("two of three", 3, good_until(2, kSkip));
  run();
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(count(0, "iteration"), 1);
  EXPECT_EQ(count(0, "aggregate"), 0);
  EXPECT_EQ(count(1, "iteration"), 2);
  EXPECT_EQ(count(1, "aggregate"), 4);
  for (const auto& result : results) {
    for (const auto& entry : result.entries) EXPECT_FALSE(entry.contains("skipped"));
  }
}

TEST_F(ReporterTest, AnInterruptLeavesNothingElseOfItsCase) {
  add("one of three", 3, good_until(1, kInterrupt));
  add("none of three", 3, kInterrupt);
  run();
  ASSERT_EQ(results.size(), 2U);
  for (const auto& result : results) {
    ASSERT_EQ(result.entries.size(), 1U) << result.name;
    EXPECT_EQ(result.entries[0].at("skip_message"), kInterrupted);
  }
}

TEST_F(ReporterTest, AFailureOutweighsAnInterrupt) {
  add("fails, then interrupted", 3, [calls = 0](benchmark::State& state) mutable {
    calls++ == 0 ? kFail(state) : kInterrupt(state);
  });
  run();
  ASSERT_EQ(results.size(), 1U);
  ASSERT_EQ(results[0].entries.size(), 1U);
  EXPECT_EQ(results[0].entries[0].at("error_message"), "wrong result");
}

TEST_F(ReporterTest, ContextIsGoogleBenchmarks) {
  const Json context = CaseReporter::benchmark_context();
  for (const char* key : {"date", "host_name", "num_cpus", "library_build_type"})
    EXPECT_TRUE(context.contains(key)) << key;
}

}  // namespace
}  // namespace tinyllama::harness

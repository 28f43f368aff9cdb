#include "benchmarks/training/run_report.hpp"

#include <gtest/gtest.h>

namespace tinyllama::training {
namespace {

StepRecord step(int64_t number, double forward, double backward, Profiled profiled = Profiled::no) {
  StepRecord record;
  record.step = number;
  record.loss = 7.0 - 0.1 * static_cast<double>(number);
  record.times[Phase::forward] = forward;
  record.times[Phase::backward] = backward;
  record.peak_memory_bytes = 1000 * number;
  record.profiled = profiled;
  return record;
}

TEST(RunReportTest, LibraryScratchIsTheLargestOfAnyStepThatKnowsIt) {
  StepRecords steps = {step(1, 1, 1), step(2, 1, 1), step(3, 1, 1)};
  steps[0].library_scratch_bytes = 70;
  steps[1].library_scratch_bytes = 50;
  EXPECT_EQ(summarize(steps, 8, 80, false).at("library_scratch_bytes"), 70);
  EXPECT_TRUE(summarize({step(1, 1, 1)}, 8, 80, false).at("library_scratch_bytes").is_null());
}

TEST(RunReportTest, NoStepsGiveNoRates) {
  const Json summary = summarize({}, 8, 80, false);
  EXPECT_EQ(summary.at("steps_completed"), 0);
  EXPECT_TRUE(summary.at("samples_per_second").is_null());
  EXPECT_TRUE(summary.at("final_loss").is_null());
  EXPECT_TRUE(summary.at("average_step_seconds").is_null());
  EXPECT_TRUE(summary.at("first_step_seconds").is_null());
}

TEST(RunReportTest, OverheadComparesMediansOfStepsWithoutTheirEvaluation) {
  StepRecords steps = {step(1, 9, 9),
                       step(2, 1, 1),
                       step(3, 1, 1),
                       step(4, 1, 1),
                       step(5, 1.1, 1.1, Profiled::operators),
                       step(6, 1.5, 1.5, Profiled::memory)};
  steps[3].times[Phase::evaluation] = 100;
  const Json summary = summarize(steps, 8, 80, false);
  EXPECT_NEAR(summary.at("operator_profiling_overhead_percent").get<double>(), 10, 1e-9);
  EXPECT_NEAR(summary.at("memory_profiling_overhead_percent").get<double>(), 50, 1e-9);
  EXPECT_EQ(summary.at("plain_steps"), 3);
  const Json plain = summarize({step(1, 1, 1), step(2, 1, 1)}, 8, 80, false);
  EXPECT_TRUE(plain.at("operator_profiling_overhead_percent").is_null());
}

TEST(RunReportTest, AStepThatWasStoppedLeavesRatesAlone) {
  const StepRecords steps = {step(1, 9, 9), step(2, 1, 1), step(3, 1, 1), step(4, 400, 1)};
  const Json summary = summarize(steps, 8, 80, false);
  const auto middle = summary.at("median_step_seconds").get<double>();
  EXPECT_LT(middle, summary.at("average_step_seconds").get<double>() / 10);
  EXPECT_DOUBLE_EQ(summary.at("samples_per_second").get<double>(), 8 / middle);
  EXPECT_DOUBLE_EQ(plain_step_seconds(steps), middle);
  EXPECT_DOUBLE_EQ(plain_step_seconds({step(1, 1, 1)}), step(1, 1, 1).times.total());
}

TEST(RunReportTest, AStepOfOneLaunchHasNoPhases) {
  const Json summary = summarize({step(1, 1, 0), step(2, 1, 0)}, 8, 80, true);
  EXPECT_TRUE(summary.at("average_forward_seconds").is_null());
  EXPECT_TRUE(summary.at("breakdown").at("backward").at("seconds").is_null());
  EXPECT_FALSE(summary.at("breakdown").at("other").at("seconds").is_null());
  EXPECT_TRUE(steps_json({step(1, 1, 0)}, true)[0].at("forward_seconds").is_null());
}

}  // namespace
}  // namespace tinyllama::training

#include "benchmarks/training/run_report.hpp"

#include <gtest/gtest.h>

#include <limits>

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

TEST(RunReportTest, AveragesLeaveTheFirstStepOut) {
  const Json summary = summarize({step(1, 5, 5), step(2, 1, 2), step(3, 2, 3)}, 8, 80, false);
  EXPECT_DOUBLE_EQ(summary.at("first_step_seconds"), 10);
  EXPECT_EQ(summary.at("steps_averaged"), 2);
  EXPECT_DOUBLE_EQ(summary.at("average_step_seconds"), 4);
  EXPECT_DOUBLE_EQ(summary.at("median_step_seconds"), 4);
  EXPECT_DOUBLE_EQ(summary.at("samples_per_second"), 2);
  EXPECT_DOUBLE_EQ(summary.at("tokens_per_second"), 20);
  EXPECT_DOUBLE_EQ(summary.at("average_forward_seconds"), 1.5);
  EXPECT_DOUBLE_EQ(summary.at("breakdown").at("backward").at("percent"), 62.5);
  EXPECT_EQ(summary.at("peak_memory_bytes"), 3000);
  EXPECT_TRUE(summary.at("library_scratch_bytes").is_null());
  EXPECT_DOUBLE_EQ(summary.at("final_loss"), 6.7);
}

TEST(RunReportTest, LibraryScratchIsTheLargestOfAnyStepThatKnowsIt) {
  std::vector<StepRecord> steps = {step(1, 1, 1), step(2, 1, 1), step(3, 1, 1)};
  steps[0].library_scratch_bytes = 70;
  steps[1].library_scratch_bytes = 50;
  EXPECT_EQ(summarize(steps, 8, 80, false).at("library_scratch_bytes"), 70);
}

TEST(RunReportTest, AnOnlyStepIsItsOwnAverage) {
  const Json summary = summarize({step(1, 1, 1)}, 8, 80, false);
  EXPECT_DOUBLE_EQ(summary.at("average_step_seconds"), 2);
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
  std::vector<StepRecord> steps = {step(1, 9, 9),
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

TEST(RunReportTest, AStepOfOneLaunchHasNoPhases) {
  const Json summary = summarize({step(1, 1, 0), step(2, 1, 0)}, 8, 80, true);
  EXPECT_TRUE(summary.at("average_forward_seconds").is_null());
  EXPECT_TRUE(summary.at("breakdown").at("backward").at("seconds").is_null());
  EXPECT_FALSE(summary.at("breakdown").at("other").at("seconds").is_null());
  EXPECT_TRUE(steps_json({step(1, 1, 0)}, true)[0].at("forward_seconds").is_null());
}

TEST(RunReportTest, StepsAddUpAndHaveNoNanInJson) {
  StepRecord record = step(1, 0.25, 0.5);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  const Json row = steps_json({record}, false)[0];
  EXPECT_DOUBLE_EQ(row.at("time_seconds"), 0.75);
  EXPECT_DOUBLE_EQ(row.at("forward_seconds"), 0.25);
  EXPECT_TRUE(row.at("loss").is_null());
  EXPECT_TRUE(row.at("evaluation_loss").is_null());
}

}  // namespace
}  // namespace tinyllama::training

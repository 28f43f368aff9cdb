#include "benchmarks/harness/figures_of_merit.hpp"

#include <gtest/gtest.h>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

class FiguresOfMeritTest : public ::testing::Test {
 protected:
  void add(int64_t batch, const Json& entry) {
    cases.push_back(testing::small_case(component, Pass::forward, Dtype::f32, batch));
    results.push_back({cases.back().name(), Json::array({entry})});
  }
  void add_measured(int64_t batch, double milliseconds) {
    add(batch, {{"run_type", "iteration"},
                {"real_time", milliseconds},
                {"time_unit", "ms"},
                {"samples_per_second", 1e3 * static_cast<double>(batch) / milliseconds},
                {"peak_memory_MiB", 12.5}});
  }
  std::string text(bool interrupted = false) const {
    return figures_of_merit(cases, results, interrupted, 12);
  }

  Component component = testing::linear_component();
  std::vector<Case> cases;
  std::vector<CaseResult> results;
};

TEST_F(FiguresOfMeritTest, ALineAFigureAndTheEnd) {
  add_measured(2, 4);
  const std::string name = cases.front().name();
  EXPECT_EQ(text(), "FOM " + name + "/time = 0.004 s\n" + "FOM " + name +
                        "/samples_per_second = 500 samples/s\n" + "FOM " + name +
                        "/peak_memory = 12.5 MiB\n" + "SUCCESS: 1 cases measured\n");
}

TEST_F(FiguresOfMeritTest, TheMedianOfRepetitionsCounts) {
  add_measured(2, 4);
  results.front().entries.push_back({{"run_type", "aggregate"},
                                     {"aggregate_name", "median"},
                                     {"real_time", 8.0},
                                     {"time_unit", "ms"}});
  EXPECT_CONTAINS(text(), "/time = 0.008 s");
}

TEST_F(FiguresOfMeritTest, SkippedCasesStandBeside) {
  add_measured(2, 4);
  add(4, {{"skipped", true}, {"skip_message", "too large"}});
  EXPECT_TRUE(text().ends_with("SUCCESS: 1 cases measured, 1 skipped\n")) << text();
}

TEST_F(FiguresOfMeritTest, AFailedCaseIsNoSuccess) {
  add_measured(2, 4);
  add(4, {{"error_occurred", true}, {"error_message", "wrong result"}});
  EXPECT_TRUE(text().ends_with("FAILED: 1 of 2 cases failed\n")) << text();
  EXPECT_CONTAINS(text(), "FOM " + cases.front().name());
  EXPECT_EQ(text().find("SUCCESS"), std::string::npos);
}

TEST_F(FiguresOfMeritTest, PeaksCountWithTheirBestRepetition) {
  Json entries = Json::array();
  for (const double rate : {0.25, 0.5, 0.375})
    entries.push_back({{"run_type", "iteration"}, {"TFLOPS", rate}});
  results.push_back({"peak/gemm/f32/64x96x32", entries});
  const Json bandwidth = {{"run_type", "iteration"}, {"GB_per_second", 40.0}};
  results.push_back({"peak/bandwidth", Json::array({bandwidth})});
  EXPECT_EQ(text(),
            "FOM peak/gemm/f32/64x96x32/TFLOPS = 0.5 TFLOP/s\n"
            "FOM peak/bandwidth/GB_per_second = 40 GB/s\n"
            "SUCCESS: 2 cases measured\n");
}

TEST_F(FiguresOfMeritTest, AnInterruptedRunIsNoSuccess) {
  add_measured(2, 4);
  EXPECT_TRUE(text(true).ends_with("INTERRUPTED: 1 of 12 cases done\n")) << text(true);
  EXPECT_EQ(text(true).find("SUCCESS"), std::string::npos);
}

TEST_F(FiguresOfMeritTest, NothingMeasuredIsNoSuccess) {
  add(4, {{"skipped", true}, {"skip_message", "too large"}});
  EXPECT_EQ(text(), "NOTHING MEASURED: 1 cases skipped\n");
}

}  // namespace
}  // namespace tinyllama::harness

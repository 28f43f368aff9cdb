#include "benchmarks/harness/summary.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

PartsOfStep made_up_parts() {
  return {"step", [](const ModelConfig& config) {
            return std::vector<PartOfStep>{{"layer", Pass::forward_backward, config.n_layers()},
                                           {"loss", Pass::forward_backward, 1},
                                           {"update", Pass::update, 1}};
          }};
}

CaseResult measured(const Case& planned, double milliseconds, const Json& counters = {}) {
  Json entry = {{"run_type", "iteration"}, {"real_time", milliseconds}, {"time_unit", "ms"}};
  entry.update(counters.is_null() ? Json::object() : counters);
  return {planned.name(), Json::array({entry})};
}

class SummaryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"layer", "loss", "update", "step"}) {
      components.push_back(testing::linear_component());
      components.back().name = name;
    }
  }
  Case planned(size_t component, Pass pass, int64_t batch = 2, Dtype dtype = Dtype::f32) const {
    return testing::small_case(components[component], pass, dtype, batch);
  }
  void add(const Case& planned, double milliseconds, const Json& counters = {}) {
    cases.push_back(planned);
    results.push_back(measured(planned, milliseconds, counters));
  }
  void add_reason(const Case& planned, const char* flag, const char* key, const char* reason) {
    cases.push_back(planned);
    results.push_back({planned.name(), Json::array({{{flag, true}, {key, reason}}})});
  }
  std::string text() const { return summary(cases, results, made_up_parts()); }
  std::string line_of(const std::string& start) const {
    const std::string all = text();
    const size_t begin = all.find(start);
    if (begin == std::string::npos) return "no line with " + start;
    return all.substr(begin, all.find('\n', begin) - begin);
  }

  std::vector<Component> components;
  std::vector<Case> cases;
  std::vector<CaseResult> results;
};

TEST_F(SummaryTest, OnlyParametersThatVaryAreColumns) {
  add(planned(0, Pass::forward, 2), 1.5, {{"TFLOPS", 0.25}, {"operators", 17}});
  add(planned(0, Pass::forward, 16), 12.0, {{"TFLOPS", 0.5}, {"operators", 17}});
  EXPECT_EQ(text(),
            "\n"
            "layer  (size custom, seq 4, dtype f32, variant baseline, pass forward)\n"
            "batch      time  +-  TFLOPS  ops\n"
            "-----  --------  --  ------  ---\n"
            "2       1.50 ms   -    0.25   17\n"
            "16     12.00 ms   -     0.5   17\n"
            "\n");
}

TEST_F(SummaryTest, EachComponentHasItsOwnVaryingParameters) {
  add(planned(0, Pass::forward), 1);
  add(planned(1, Pass::forward), 2);
  add(planned(0, Pass::backward), 3);
  EXPECT_CONTAINS(line_of("layer  ("),
                  "(size custom, batch 2, seq 4, dtype f32, variant baseline)");
  EXPECT_CONTAINS(line_of("loss  ("), "pass forward)");
  EXPECT_CONTAINS(text(), "\nforward   1.00 ms");
  EXPECT_CONTAINS(text(), "\nbackward  3.00 ms");
}

TEST_F(SummaryTest, CountersThatARowLacksAreDashes) {
  add(planned(0, Pass::forward, 2), 1, {{"TFLOPS", 1.0}});
  add(planned(0, Pass::forward, 4), 1, {{"GB_per_second", 3.0}});
  EXPECT_CONTAINS(text(), "TFLOPS  GB/s");
  EXPECT_CONTAINS(text(), "     1     -\n");
  EXPECT_CONTAINS(text(), "     -  3.00\n");
}

TEST_F(SummaryTest, TheMedianRepetitionIsTheMeasurement) {
  const Case c = planned(0, Pass::forward);
  const auto entry = [](const char* aggregate, double time, const char* unit = "us") {
    Json json = {{"real_time", time}, {"time_unit", unit}};
    if (*aggregate != '\0') json["aggregate_name"] = aggregate;
    return json;
  };
  const CaseResult result{
      c.name(), Json::array({entry("", 100), entry("", 300), entry("", 110), entry("mean", 170),
                             entry("median", 110), entry("cv", 0.66)})};
  const auto row = measured_case(c, result);
  ASSERT_TRUE(row);
  EXPECT_DOUBLE_EQ(row->seconds, 110e-6);
  EXPECT_DOUBLE_EQ(row->spread.value(), 0.66);
  EXPECT_EQ(row->entry.at("aggregate_name"), "median");

  const auto single = measured_case(c, {c.name(), Json::array({entry("", 100, "ns")})});
  ASSERT_TRUE(single);
  EXPECT_DOUBLE_EQ(single->seconds, 100e-9);
  EXPECT_FALSE(single->spread);
}

TEST_F(SummaryTest, WhatWasSkippedOrFailedIsNoMeasurement) {
  const Case c = planned(0, Pass::forward);
  for (const char* flag : {"skipped", "error_occurred"}) {
    const CaseResult result{c.name(), Json::array({{{flag, true}, {"real_time", 0.0}}})};
    EXPECT_FALSE(measured_case(c, result)) << flag;
  }
  EXPECT_FALSE(measured_case(c, {c.name(), Json::array()}));
}

TEST_F(SummaryTest, ReasonsOfSkippedAndFailedCasesAreThere) {
  add(planned(0, Pass::forward), 1);
  add_reason(planned(1, Pass::forward, 2), "skipped", "skip_message", "does not fit");
  add_reason(planned(1, Pass::forward, 4), "skipped", "skip_message", "does not fit");
  add_reason(planned(2, Pass::forward), "error_occurred", "error_message", "wrong result");
  EXPECT_CONTAINS(text(), "skipped\n  " + cases[1].name() + "\n  " + cases[2].name() +
                              "\n      does not fit\n");
  EXPECT_CONTAINS(text(), "FAILED\n  " + cases[3].name() + "\n      wrong result\n");
}

TEST_F(SummaryTest, PeaksShowTheBestRepetition) {
  Json slow = {{"run_type", "iteration"}, {"TFLOPS", 0.5}, {"label", "default BLAS"}};
  Json fast = slow;
  fast["TFLOPS"] = 0.75;
  results.push_back({"peak/gemm/f32", Json::array({slow, fast})});
  EXPECT_CONTAINS(text(), "peaks, measured\n");
  EXPECT_CONTAINS(line_of("  peak/gemm/f32"), " 0.75 TFLOP/s  default BLAS");
}

TEST_F(SummaryTest, SumOfPartsIsTheSumOfThePartsOverTheWhole) {
  add(planned(0, Pass::forward_backward), 10);  // twice: small_config() has two layers
  add(planned(0, Pass::forward), 1000);         // not part of the sum
  add(planned(1, Pass::forward_backward), 25);
  add(planned(2, Pass::update), 5);
  add(planned(3, Pass::train), 40);
  const std::string line = line_of("sum of parts");
  EXPECT_CONTAINS(line, "custom f32 batch 2 seq 4");
  EXPECT_CONTAINS(line, "2 x layer 10.00 ms + loss 25.00 ms + update 5.00 ms = 50.00 ms = 125.0 %");
  EXPECT_TRUE(line.ends_with("125.0 % of step 40.00 ms (from the rows above)")) << line;
}

// Other load during the first cases is no property of the step.
TEST_F(SummaryTest, SumOfPartsIsOfWhatWasInterleavedAndSaysWhatTheRowsGive) {
  add(planned(0, Pass::forward_backward), 20);
  add(planned(1, Pass::forward_backward), 10.5);
  add(planned(2, Pass::update), 5);
  add(planned(3, Pass::train), 40);
  std::vector<double> seconds = {0.010, 0.010, 0.005, 0.040};
  const auto measure = [&](const std::vector<const Case*>& asked) {
    std::string names;
    for (const Case* one : asked) names += one->component->name + " ";
    EXPECT_EQ(names, "layer loss update step ");
    return seconds;
  };
  EXPECT_CONTAINS(
      summary(cases, results, made_up_parts(), measure),
      "= 35.00 ms = 87.5 % of step 40.00 ms (interleaved; 138.8 % by the rows above)\n");
  seconds.clear();
  EXPECT_CONTAINS(summary(cases, results, made_up_parts(), measure), "(from the rows above)\n");
}

TEST_F(SummaryTest, SumOfPartsTakesPartsOfTheSameWorkloadOnly) {
  add(planned(0, Pass::forward_backward), 10);
  add(planned(1, Pass::forward_backward), 25);
  add(planned(2, Pass::update, 2, Dtype::bf16), 5);
  add(planned(3, Pass::train), 40);
  EXPECT_EQ(line_of("sum of parts"),
            "sum of parts  not computed: step was measured at no point together with update");
}

TEST_F(SummaryTest, SumOfPartsNamesThePartsThatAreMissing) {
  add(planned(1, Pass::forward_backward), 25);
  add(planned(3, Pass::train), 40);
  EXPECT_EQ(
      line_of("sum of parts"),
      "sum of parts  not computed: step was measured at no point together with layer, update");
}

TEST_F(SummaryTest, NoWholeNoSumOfParts) {
  add(planned(0, Pass::forward_backward), 10);
  EXPECT_EQ(text().find("sum of parts"), std::string::npos);
}

TEST_F(SummaryTest, SumOfPartsHasALineForEachCompletePoint) {
  for (const int64_t batch : {2, 4}) {
    add(planned(0, Pass::forward_backward, batch), 1);
    add(planned(1, Pass::forward_backward, batch), 1);
    add(planned(2, Pass::update, batch), 1);
    add(planned(3, Pass::train, batch), 4);
  }
  EXPECT_CONTAINS(line_of("sum of parts  baseline custom f32 batch 2"), "100.0 %");
  EXPECT_CONTAINS(line_of("sum of parts  baseline custom f32 batch 4"), "100.0 %");
}

}  // namespace
}  // namespace tinyllama::harness

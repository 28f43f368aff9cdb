#include "benchmarks/harness/tables.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "benchmarks/harness/testing.hpp"
#include "core/data_folder.hpp"

namespace tinyllama::harness {
namespace {

TORCH_LIBRARY(tables_test, library) {
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor",
              [](const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate) * up; });
}

PartsOfStep made_up_parts() {
  return {"step", [](const ModelConfig& config) {
            return std::vector<PartOfStep>{{"layer", Pass::forward_backward, config.n_layers()},
                                           {"loss", Pass::forward_backward, 1},
                                           {"update", Pass::update, 1}};
          }};
}

CaseResult measured(const Case& test_case, double milliseconds, const Json& counters = {}) {
  Json entry = {{"run_type", "iteration"}, {"real_time", milliseconds}, {"time_unit", "ms"}};
  entry.update(counters.is_null() ? Json::object() : counters);
  return {test_case.name(), Json::array({entry})};
}

class TablesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"layer", "loss", "update", "step"}) {
      components.push_back(testing::linear_component());
      components.back().name = name;
    }
    options.axes.components = {"layer"};
  }
  Case a_case(size_t component, Pass pass, int64_t batch = 2, Dtype dtype = Dtype::f32) const {
    return testing::small_case(components[component], pass, dtype, batch);
  }
  void add(const Case& test_case, double milliseconds, const Json& counters = {}) {
    cases.push_back(test_case);
    results.push_back(measured(test_case, milliseconds, counters));
  }
  void add_reason(const Case& test_case, const char* flag, const char* key, const char* reason) {
    cases.push_back(test_case);
    results.push_back({test_case.name(), Json::array({{{flag, true}, {key, reason}}})});
  }
  void add_variant(const Case& baseline, double milliseconds, const Json& counters = {}) {
    Case other = baseline;
    other.workload.variant = Variant::parse("qkv");
    add(other, milliseconds, counters);
  }
  std::string text(const MeasureInterleaved& measure = {}) const {
    return result_tables(options, cases, {context, results}, made_up_parts(), measure);
  }
  std::string line_of(const std::string& start) const {
    const std::string all = text();
    const size_t begin = all.find(start);
    if (begin == std::string::npos) return "no line with " + start;
    return all.substr(begin, all.find('\n', begin) - begin);
  }

  std::vector<Component> components;
  std::vector<Case> cases;
  std::vector<CaseResult> results;
  Json context = Json::object();
  Options options;
};

TEST_F(TablesTest, OnlyWhatVariesIsAColumn) {
  add(a_case(0, Pass::forward, 2), 1.5, {{"MFU_percent", 25.0}, {"peak_memory_MiB", 1.5}});
  add(a_case(0, Pass::forward, 16), 12.0, {{"MFU_percent", 50.0}, {"peak_memory_MiB", 1.5}});
  EXPECT_EQ(text(),
            "\n"
            "layer  (pass forward, size custom, seq 4, dtype f32, variant baseline)\n"
            "batch      time  MFU %\n"
            "-----  --------  -----\n"
            "2       1.50 ms   25.0\n"
            "16     12.00 ms   50.0\n"
            "in all rows: repetitions 1, memory 1.5 MiB\n"
            "\n");
}

TEST_F(TablesTest, ColumnsAreAddedByTheNamesOfTheirCounters) {
  add(a_case(0, Pass::forward, 2), 1, {{"speedup", 1.0}, {"kernels", 3}, {"TFLOPS", 1.0}});
  add_variant(a_case(0, Pass::forward, 2), 2, {{"speedup", 0.5}, {"kernels", 4}, {"TFLOPS", 2.0}});
  EXPECT_CONTAINS(text(), "time  speedup\n");
  options.columns = {"kernels"};
  EXPECT_CONTAINS(text(), "time  speedup  kernels\n");
  options.columns = {"all"};
  EXPECT_CONTAINS(text(), "time  speedup  TFLOP/s  kernels\n");
}

// Every row would say 1.
TEST_F(TablesTest, OfTheBaselineAloneThereIsNoSpeedup) {
  add(a_case(0, Pass::forward, 2), 1, {{"speedup", 1.0}});
  add(a_case(0, Pass::forward, 4), 2, {{"speedup", 1.0}});
  EXPECT_EQ(text().find("speedup"), std::string::npos);
}

TEST_F(TablesTest, RowsThatWereDisturbedAreMarkedWithTheReason) {
  for (const char* label : {"a remark", "a remark; disturbed: mean 9 ms, median 1 ms; other"}) {
    add(a_case(0, Pass::forward, cases.empty() ? 2 : 4), 1);
    Json middle = {{"run_type", "aggregate"}, {"aggregate_name", "median"},  {"real_time", 1},
                   {"time_unit", "ms"},       {"interval_ns", {9e5, 1.1e6}}, {"label", label}};
    Json& entries = results.back().entries;
    entries.push_back(entries.front());
    entries.push_back(std::move(middle));
  }
  EXPECT_CONTAINS(text(), "  10%\n");
  EXPECT_CONTAINS(text(), "  !10%\nin all rows: repetitions 2\n");
  EXPECT_CONTAINS(text(), "+-: half the 95 % interval of the time, by the medians of its repetit");
  EXPECT_CONTAINS(text(),
                  "! disturbed: repetitions, or mean and median of one, differ by more "
                  "than 10 %, or others took processors\n  " +
                      cases.back().name() + ": mean 9 ms, median 1 ms\n\n");
  results.pop_back();
  EXPECT_EQ(text().find('!'), std::string::npos);
}

TEST_F(TablesTest, NumbersOfRepetitionsThatDifferAreAColumn) {
  add(a_case(0, Pass::forward, 2), 1);
  results.back().entries.push_back(results.back().entries.front());
  add(a_case(0, Pass::forward, 4), 1);
  EXPECT_CONTAINS(text(), "batch     time  reps\n");
}

TEST_F(TablesTest, VariantsStandSideBySideAndTheFastestIsMarked) {
  const auto speedup = [](double ratio, double low, double high) {
    return Json{{"speedup", ratio}, {"speedup_low", low}, {"speedup_high", high}};
  };
  for (const int64_t batch : {2, 4}) {
    const Case c = a_case(0, Pass::forward, batch);
    add(c, 8, {{"speedup", 1.0}});
    add_variant(c, 4, batch == 2 ? speedup(2, 1.9, 2.25) : speedup(1.1, 0.9, 1.3));
  }
  EXPECT_CONTAINS(text(),
                  "variants  (pass forward, size custom, seq 4, dtype f32)\n"
                  "component  batch  baseline       qkv          speedup\n"
                  "---------  -----  --------  --------  ---------------\n"
                  "layer          2   8.00 ms  *4.00 ms  2.00 (1.9-2.25)\n"
                  "layer          4   8.00 ms   4.00 ms  ~1.10 (0.9-1.3)\n");
  EXPECT_CONTAINS(text(), "interval; ~: no difference shown; no interval: too slow for");
}

// The plan has them in another order: its innermost axis is the pass.
TEST_F(TablesTest, RowsAreSortedByPassWithTheVariantsOfAPointOnLinesThatFollow) {
  for (const int64_t batch : {16, 2}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) add(a_case(0, pass, batch), 8);
    for (const Pass pass : {Pass::forward, Pass::backward}) add_variant(a_case(0, pass, batch), 4);
  }
  EXPECT_CONTAINS(text(),
                  "layer  (size custom, seq 4, dtype f32)\n"
                  "pass      batch   variant     time\n"
                  "--------  -----  --------  -------\n"
                  "forward      16  baseline  8.00 ms\n"
                  "forward      16       qkv  4.00 ms\n"
                  "forward       2  baseline  8.00 ms\n"
                  "forward       2       qkv  4.00 ms\n"
                  "backward     16  baseline  8.00 ms\n"
                  "backward     16       qkv  4.00 ms\n"
                  "backward      2  baseline  8.00 ms\n"
                  "backward      2       qkv  4.00 ms\n");
  EXPECT_CONTAINS(text(),
                  "component      pass  batch  baseline      qkv\n"
                  "---------  --------  -----  --------  -------\n"
                  "layer       forward     16   8.00 ms  4.00 ms\n"
                  "layer       forward      2   8.00 ms  4.00 ms\n"
                  "layer      backward     16   8.00 ms  4.00 ms\n"
                  "layer      backward      2   8.00 ms  4.00 ms\n");
}

// A variant may skip FLOPs that the baseline computes, so that the limits differ.
TEST_F(TablesTest, ARoofHasItsVariantsNameAndABoundThatDiffersOneWordEach) {
  for (const int64_t batch : {2, 4}) {
    add(a_case(0, Pass::forward, batch), 8, {{"peak_percent", 30.0}, {"roof_percent", 30.0}});
    add_variant(a_case(0, Pass::forward, batch), 4,
                {{"peak_percent", 20.0}, {"roof_percent", batch == 2 ? 35.0 : 20.0}});
  }
  EXPECT_CONTAINS(text(), "baseline      qkv  baseline roof %  qkv roof %              bound\n");
  EXPECT_CONTAINS(text(), "30.0        35.0  compute/bandwidth\n");
  EXPECT_CONTAINS(text(), "30.0        20.0            compute\n");
}

TEST_F(TablesTest, WhatHasNoTimeIsMarked) {
  const Case c = a_case(0, Pass::forward, 2, Dtype::bf16);
  add(a_case(0, Pass::forward), 8);
  add_variant(a_case(0, Pass::forward), 4);
  add_reason(c, "skipped", "skip_message", "would take too long");
  add_variant(c, 2);
  add_variant(a_case(0, Pass::backward), 2);
  add_reason(a_case(0, Pass::backward), "error_occurred", "error_message", "wrong result");
  EXPECT_CONTAINS(text(),
                  "component      pass  dtype  baseline      qkv\n"
                  "---------  --------  -----  --------  -------\n"
                  "layer       forward    f32   8.00 ms  4.00 ms\n"
                  "layer       forward   bf16   skipped  2.00 ms\n"
                  "layer      backward    f32    FAILED  2.00 ms\n");
  EXPECT_CONTAINS(text(), "\nno row: 1 FAILED, 1 skipped (reasons below)\n");
}

class DigestTest : public TablesTest {
 protected:
  void SetUp() override {
    TablesTest::SetUp();
    options = {};
    for (const int64_t batch : {2, 4}) {
      for (const size_t component : {size_t{0}, size_t{3}}) {
        const Case c = a_case(component, component == 3 ? Pass::train : Pass::forward, batch);
        add(c, 8, {{"speedup", 1.0}, {"roof_percent", 20.0}});
        if (component == 3 || batch == 2)
          add_variant(c, 4, {{"speedup", 2.0}, {"roof_percent", 40.0}});
      }
      add(a_case(1, Pass::forward, batch), 1, {{"roof_percent", 10.0}});
    }
  }
};

TEST_F(DigestTest, HasTheStepAndTheComponentsWhereTheGridBegins) {
  const std::string found = text();
  EXPECT_CONTAINS(found,
                  "step  (pass train, size custom, batch 2, seq 4, dtype f32)\n"
                  "variant      time  speedup  roof %\n"
                  "--------  -------  -------  ------\n"
                  "baseline  8.00 ms     1.00    20.0\n"
                  "qkv       4.00 ms     2.00    40.0\n"
                  "in all rows: repetitions 1, bound bandwidth\n");
  EXPECT_CONTAINS(found,
                  "variants  (pass forward, size custom, batch 2, seq 4, dtype f32)\n"
                  "component  baseline      qkv  speedup  baseline roof %  qkv roof %\n"
                  "---------  --------  -------  -------  ---------------  ----------\n"
                  "layer       8.00 ms  4.00 ms     2.00             20.0        40.0\n"
                  "loss        1.00 ms        -        -             10.0           -\n");
  EXPECT_EQ(found.find("batch 4"), std::string::npos);
}

TEST_F(DigestTest, MarksWhatHasNoTimeThere) {
  const Case c = a_case(0, Pass::forward, 2, Dtype::bf16);
  add_reason(c, "skipped", "skip_message", "would take too long");
  add_variant(c, 4);
  add_reason(a_case(1, Pass::forward, 4, Dtype::bf16), "skipped", "skip_message", "elsewhere");
  EXPECT_CONTAINS(text(),
                  "variants  (pass forward, size custom, batch 2, seq 4, dtype bf16)\n"
                  "component  baseline      qkv\n"
                  "---------  --------  -------\n"
                  "layer       skipped  4.00 ms\n");
  EXPECT_EQ(text().find("no row"), std::string::npos) << "the step has all of its own";
}

TEST_F(DigestTest, EndsInTheWaysToTheOtherRows) {
  EXPECT_CONTAINS(text(), "all 9 measured cases\n  --columns all shows them");
  options.out_file = "a.json";
  options.journal_file = "a.jsonl";
  EXPECT_TRUE(
      text().ends_with("written: a.json, a.jsonl\n"
                       "all 9 measured cases\n"
                       "  as a page: " +
                       typed("report") +
                       " a.json\n"
                       "  as tables: --resume --journal a.jsonl --columns all\n"));
}

TEST_F(DigestTest, HasTheFirstOfManySkippedCases) {
  for (int64_t batch = 1; batch <= 12; ++batch)
    add_reason(a_case(2, Pass::update, batch), "skipped", "skip_message", "does not fit");
  EXPECT_CONTAINS(text(), "batch:10/seq:4: does not fit\n  and 2 more\n\n");
  options.columns = {"all"};
  EXPECT_CONTAINS(text(), "batch:12/seq:4: does not fit\n\n");
}

TEST_F(DigestTest, ColumnsAFilterOrAnAxisAskForTables) {
  const std::string all_rows = "batch   variant     time";
  EXPECT_EQ(text().find(all_rows), std::string::npos);
  Options asked;
  asked.columns = {"bytes"};
  options = asked;
  EXPECT_CONTAINS(text(), "batch   variant     time");
  asked = {};
  asked.filter = "layer";
  options = asked;
  EXPECT_CONTAINS(text(), all_rows);
}

TEST_F(TablesTest, EachComponentHasItsOwnVaryingParameters) {
  add(a_case(0, Pass::forward), 1);
  add(a_case(1, Pass::forward), 2);
  add(a_case(0, Pass::backward), 3);
  EXPECT_CONTAINS(line_of("layer  ("),
                  "(size custom, batch 2, seq 4, dtype f32, variant baseline)");
  EXPECT_CONTAINS(line_of("loss  ("), "(pass forward, ");
  EXPECT_CONTAINS(text(), "\nforward   1.00 ms");
  EXPECT_CONTAINS(text(), "\nbackward  3.00 ms");
}

TEST_F(TablesTest, CountersThatARowLacksAreDashes) {
  add(a_case(0, Pass::forward, 2), 1, {{"MFU_percent", 1.0}});
  add(a_case(0, Pass::forward, 4), 1, {{"roof_percent", 3.0}});
  EXPECT_CONTAINS(text(), "MFU %  roof %");
  EXPECT_CONTAINS(text(), "  1.0       -          -\n");
  EXPECT_CONTAINS(text(), "    -     3.0  bandwidth\n");
}

TEST_F(TablesTest, BoundIsTheLargerOfTheTwoLeastTimes) {
  add(a_case(0, Pass::forward, 2), 1, {{"peak_percent", 30.0}, {"roof_percent", 30.0}});
  add(a_case(0, Pass::forward, 4), 1, {{"peak_percent", 20.0}, {"roof_percent", 30.5}});
  EXPECT_CONTAINS(text(), "30.0    30.0    compute\n");
  EXPECT_CONTAINS(text(), "20.0    30.5  bandwidth\n");
  EXPECT_CONTAINS(text(), "bound: which takes longer at its measured peak, the FLOPs (compute) or");
}

TEST_F(TablesTest, BoundIsNoOtherLimitsWord) {
  for (const int64_t batch : {2, 4})
    add(a_case(0, Pass::forward, batch), 1, {{"host_bound", batch / 2}, {"device_ms", batch}});
  options.columns = {"all"};
  EXPECT_CONTAINS(text(), "device ms  waits for host\n");
  EXPECT_EQ(text().find("bound"), std::string::npos);
}

TEST_F(TablesTest, AColumnThatRepeatsAnotherIsSaidToBeTheSame) {
  add(a_case(0, Pass::forward, 2), 1, {{"peak_percent", 30.0}, {"roof_percent", 30.0}});
  add(a_case(0, Pass::forward, 4), 1, {{"peak_percent", 20.0}, {"roof_percent", 20.0}});
  EXPECT_CONTAINS(text(), "time  peak %\n");
  EXPECT_CONTAINS(text(), "in all rows: repetitions 1, roof % = peak %, bound compute\n");
}

TEST_F(TablesTest, NamesOfSetsAreSaidWithTheSwitchesThatTheComponentContains) {
  Case one = a_case(0, Pass::forward, 2);
  components.front().parts = Part::attention;
  one.workload.variant = Variant::parse("qkv+fused_adamw").named_optimized();
  add(one, 1);
  EXPECT_CONTAINS(text(), "\noptimized = qkv\n");
}

TEST_F(TablesTest, TheMedianRepetitionIsTheMeasurement) {
  const Case c = a_case(0, Pass::forward);
  const auto entry = [](const char* aggregate, double time, const char* unit = "us") {
    Json json = {{"real_time", time}, {"time_unit", unit}};
    if (*aggregate != '\0') json["aggregate_name"] = aggregate;
    return json;
  };
  CaseResult result{c.name(), Json::array({entry("", 100), entry("", 300), entry("", 110),
                                           entry("mean", 170), entry("median", 110)})};
  EXPECT_FALSE(measured_case(c, result)->precision) << "of a peak, or of ranks";
  result.entries.back()["interval_ns"] = {99e3, 143e3};
  const auto row = measured_case(c, result);
  ASSERT_TRUE(row);
  EXPECT_DOUBLE_EQ(row->seconds, 110e-6);
  EXPECT_DOUBLE_EQ(row->precision.value(), 0.2);
  EXPECT_EQ(row->repetitions, 3);
  EXPECT_EQ(row->entry.at("aggregate_name"), "median");

  const auto single = measured_case(c, {c.name(), Json::array({entry("", 100, "ns")})});
  ASSERT_TRUE(single);
  EXPECT_DOUBLE_EQ(single->seconds, 100e-9);
  EXPECT_FALSE(single->precision);
}

TEST_F(TablesTest, WhatWasSkippedOrFailedIsNoMeasurement) {
  const Case c = a_case(0, Pass::forward);
  for (const char* flag : {"skipped", "error_occurred"}) {
    const CaseResult result{c.name(), Json::array({{{flag, true}, {"real_time", 0.0}}})};
    EXPECT_FALSE(measured_case(c, result)) << flag;
  }
  EXPECT_FALSE(measured_case(c, {c.name(), Json::array()}));
}

TEST_F(TablesTest, ReasonsOfSkippedAndFailedCasesAreThere) {
  add(a_case(0, Pass::forward), 1);
  add_reason(a_case(1, Pass::forward, 2), "skipped", "skip_message", "does not fit");
  add_reason(a_case(1, Pass::forward, 4), "skipped", "skip_message", "does not fit");
  add_reason(a_case(2, Pass::forward), "error_occurred", "error_message", "wrong result");
  EXPECT_CONTAINS(text(), "skipped\n  " + cases[1].name() + ": does not fit\n  " + cases[2].name() +
                              ": does not fit\n\n");
  EXPECT_CONTAINS(text(), "FAILED\n  " + cases[3].name() + ": wrong result\n");
}

TEST_F(TablesTest, PeaksShowTheBestRepetition) {
  Json slow = {{"run_type", "iteration"}, {"TFLOPS", 0.5}, {"label", "default BLAS"}};
  Json fast = slow;
  fast["TFLOPS"] = 0.75;
  results.push_back({"peak/gemm/f32", Json::array({slow, fast})});
  EXPECT_CONTAINS(text(), "peaks, measured\n");
  EXPECT_CONTAINS(line_of("  peak/gemm/f32"), " 0.75 TFLOP/s  default BLAS");
}

TEST_F(TablesTest, ThePeaksThatPercentagesAreOf) {
  context["peaks"] = testing::made_up_peaks(4e11, 10e9,
                                            {{1 << 16, 80e9},
                                             {1 << 17, 70e9},
                                             {1 << 18, 60e9},
                                             {1 << 19, 50e9},
                                             {1 << 20, 40e9},
                                             {1 << 21, 20e9}});
  EXPECT_EQ(text().find("measured peaks"), std::string::npos) << "nothing was measured";
  add(a_case(0, Pass::forward), 1);
  EXPECT_EQ(line_of("measured peaks"),
            "measured peaks: f32 400.00 GFLOP/s, bf16 400.00 GFLOP/s, bandwidth 20.00 GB/s at "
            "2.00 MiB, 70.00 GB/s at 128.00 KiB");
}

TEST_F(TablesTest, SumOfPartsIsTheSumOfThePartsOverTheWholeAtEachPoint) {
  for (const int64_t batch : {2, 4}) {
    add(a_case(0, Pass::forward_backward, batch), 10);  // twice: small_config() has two layers
    add(a_case(0, Pass::forward, batch), 1000);         // not part of the sum
    add(a_case(1, Pass::forward_backward, batch), 25);
    add(a_case(2, Pass::update, batch), 5);
    add(a_case(3, Pass::train, batch), batch == 2 ? 40 : 50);
  }
  EXPECT_CONTAINS(text(),
                  "sum of parts  baseline custom f32 batch 2 seq 4: 125.0 % of step 40.00 ms (from "
                  "the rows above)\n"
                  "  2 x layer 10.00 ms + loss 25.00 ms + update 5.00 ms = 50.00 ms\n");
  EXPECT_CONTAINS(line_of("sum of parts  baseline custom f32 batch 4"), "100.0 %");
}

// Other load during the first cases is no property of the step.
TEST_F(TablesTest, SumOfPartsIsOfWhatWasInterleavedAndSaysWhatTheRowsGive) {
  add(a_case(0, Pass::forward_backward), 20);
  add(a_case(1, Pass::forward_backward), 10.5);
  add(a_case(2, Pass::update), 5);
  add(a_case(3, Pass::train), 40);
  // of three rounds, of which the medians count
  SecondsOfRounds seconds = {{0.010, 0.009, 0.3}, {0.010, 0.010, 0.010}, {0.005, 0.005}, {0.040}};
  const auto measure = [&](const std::vector<const Case*>& asked) {
    std::string names;
    for (const Case* one : asked) names += one->component->name + " ";
    EXPECT_EQ(names, "layer loss update step ");
    return seconds;
  };
  EXPECT_CONTAINS(text(measure),
                  "87.5 % of step 40.00 ms (interleaved; 138.8 % by the rows above)\n");
  EXPECT_CONTAINS(text(measure), " = 35.00 ms\n");
  seconds.clear();
  EXPECT_CONTAINS(text(measure), "(from the rows above)\n");
}

// Of the step's variant where that was measured, else of one that is the same there; a baseline
// that is not the same is none.
TEST_F(TablesTest, SumOfPartsTakesPartsThatAnOperatorLeavesAsTheyAre) {
  components[0].parts = Part::ffn;
  components[1].parts = Part::loss;
  components[2].parts = Part::update;
  const Variant fast =
      Variant({Switch::gate_up, Switch::fused_swiglu, Switch::fused_loss}).named_optimized();
  const Variant own = fast.with(SlotOperator::find("tables_test::swiglu"));
  const auto add_of = [&](Case of, const Variant& variant, double milliseconds) {
    of.workload.variant = variant;
    add(of, milliseconds);
  };
  add_of(a_case(0, Pass::forward_backward), fast, 1000);
  add_of(a_case(0, Pass::forward_backward), own, 10);
  add_of(a_case(1, Pass::forward_backward), Variant(), 1000);
  add_of(a_case(2, Pass::update), Variant(), 5);
  add_of(a_case(3, Pass::train), own, 40);
  EXPECT_EQ(line_of("sum of parts"),
            "sum of parts  not computed: step was measured at no point together with loss");
  add_of(a_case(1, Pass::forward_backward), fast, 15);
  EXPECT_CONTAINS(
      text(),
      "sum of parts  optimized+tables_test::swiglu custom f32 batch 2 seq 4: 100.0 % of "
      "step 40.00 ms (from the rows above)\n"
      "  2 x layer 10.00 ms + loss 15.00 ms + update 5.00 ms = 40.00 ms\n");
}

TEST_F(TablesTest, SumOfPartsTakesPartsOfTheSameWorkloadOnly) {
  add(a_case(0, Pass::forward_backward), 10);
  add(a_case(1, Pass::forward_backward), 25);
  add(a_case(2, Pass::update, 2, Dtype::bf16), 5);
  add(a_case(3, Pass::train), 40);
  EXPECT_EQ(line_of("sum of parts"),
            "sum of parts  not computed: step was measured at no point together with update");
}

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

TEST_F(FiguresOfMeritTest, TheEndSaysWhatBecameOfAllCases) {
  add(2, {{"skipped", true}, {"skip_message", "too large"}});
  EXPECT_EQ(text(), "NOTHING MEASURED: 1 cases skipped\n");
  add_measured(4, 4);
  const std::string figures = "FOM " + cases.back().name() + "/time = 0.004 s\n";
  const auto expect_end = [&](const std::string& end, bool interrupted = false) {
    EXPECT_TRUE(text(interrupted).starts_with(figures)) << text(interrupted);
    EXPECT_TRUE(text(interrupted).ends_with("12.5 MiB\n" + end)) << text(interrupted);
  };
  expect_end("SUCCESS: 1 cases measured, 1 skipped\n");
  add(8, {{"error_occurred", true}, {"error_message", "wrong result"}});
  expect_end("FAILED: 1 of 3 cases failed\n");
  expect_end("INTERRUPTED: 3 of 12 cases done\n", true);
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

}  // namespace
}  // namespace tinyllama::harness

#include "benchmarks/harness/rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "benchmarks/harness/case_counters.hpp"
#include "benchmarks/harness/counters.hpp"
#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/testing.hpp"
#include "core/statistics.hpp"

namespace tinyllama::harness {
namespace {

const RowIdentity kIdentity{"case", 7, 3, "us"};

Outcome three_repetitions() {
  Outcome outcome;
  outcome.repetitions = {{1e-6, 5e-7, 10, {{"c", 1}}},
                         {2e-6, 5e-7, 20, {{"c", 2}}},
                         {6e-6, 5e-7, 30, {{"c", 9}, {"sometimes", 1}}}};
  return outcome;
}

TEST(RowsTest, ARepetitionHasGoogleBenchmarksKeysAndItsSamples) {
  Outcome outcome;
  outcome.label = "a remark";
  outcome.repetitions = {
      {4e-6, 3e-6, 7, {{"bytes", 12}}, {4e-6, 1e-6, 2e-6, 3e-6, 7e-6, 5e-6, 6e-6}}};
  const CaseResult result = to_rows(kIdentity, outcome);
  EXPECT_EQ(result.name, "case");
  ASSERT_EQ(result.entries.size(), 1U) << "no statistics over one repetition";
  const Json expected = {{"name", "case"},
                         {"family_index", 7},
                         {"per_family_instance_index", 0},
                         {"run_name", "case"},
                         {"run_type", "iteration"},
                         {"repetitions", 3},
                         {"repetition_index", 0},
                         {"threads", 1},
                         {"iterations", 7}};
  Json shared = result.entries[0];
  for (const char* key :
       {"real_time", "cpu_time", "time_unit", "mean_ns", "samples_ns", "bytes", "label"})
    EXPECT_EQ(shared.erase(key), 1U) << key;
  EXPECT_EQ(shared, expected);
  const Json& row = result.entries[0];
  EXPECT_DOUBLE_EQ(row.at("real_time").get<double>(), 4);
  EXPECT_DOUBLE_EQ(row.at("cpu_time").get<double>(), 3);
  EXPECT_EQ(row.at("time_unit"), "us");
  EXPECT_DOUBLE_EQ(row.at("mean_ns").get<double>(), 4000);
  EXPECT_EQ(row.at("samples_ns"), Json({4000, 1000, 2000, 3000, 7000, 5000, 6000}));
  EXPECT_EQ(row.at("bytes"), 12);
  EXPECT_EQ(row.at("label"), "a remark");
}

TEST(RowsTest, OfManySamplesSomeAreKept) {
  Outcome outcome;
  outcome.repetitions = {{1e-6, 0, 1000, {}, std::vector<double>(1000, 1e-6)}};
  const CaseResult result = to_rows(kIdentity, outcome);
  EXPECT_EQ(result.entries[0].at("samples_ns").size(), kMostSamplesInARow);
}

TEST(RowsTest, StatisticsAreThoseOfTheRepetitions) {
  const Json entries = to_rows(kIdentity, three_repetitions()).entries;
  ASSERT_EQ(entries.size(), 3U + 4U);
  const auto value = [&](size_t index, const char* key) {
    return entries[index].at(key).get<double>();
  };
  EXPECT_EQ(entries[3].at("name"), "case_mean");
  EXPECT_EQ(entries[3].at("aggregate_name"), "mean");
  EXPECT_EQ(entries[3].at("aggregate_unit"), "time");
  EXPECT_EQ(entries[3].at("iterations"), 3);
  EXPECT_FALSE(entries[3].contains("repetition_index"));
  EXPECT_DOUBLE_EQ(value(3, "real_time"), 3);
  EXPECT_DOUBLE_EQ(value(3, "c"), 4);
  EXPECT_FALSE(entries[3].contains("sometimes")) << "not in all repetitions";
  EXPECT_DOUBLE_EQ(value(4, "real_time"), 2);
  EXPECT_NEAR(value(5, "real_time"), 2.6457513, 1e-6);
  EXPECT_EQ(entries[6].at("aggregate_unit"), "percentage");
  EXPECT_NEAR(value(6, "real_time"), 2.6457513 / 3, 1e-6);
  EXPECT_NEAR(value(6, "cpu_time"), 0, 1e-12);
}

// Seconds of an iteration with one of its samples replaced.
Repetition repetition_of(double seconds, double stray) {
  std::vector<double> samples(100, seconds);
  samples.front() = stray;
  return {seconds, 0, 100, {}, samples};
}

TEST(RowsTest, ASampleOfSecondsMarksTheCase) {
  Outcome outcome;
  outcome.label = "a remark";
  outcome.repetitions = {repetition_of(6.9e-3, 7e-3), repetition_of(6.9e-3, 4.0)};
  const auto label = [&] {
    const Json entries = to_rows(kIdentity, outcome).entries;
    EXPECT_EQ(entries.front().value("label", ""), entries.back().value("label", "")) << "all rows";
    return entries.front().value("label", "");
  };
  EXPECT_EQ(label(), "a remark; disturbed: mean 46.83 ms, median 6.90 ms: a sample of 4.000 s");
  outcome.repetitions[1].samples[1] = 3.0;
  EXPECT_CONTAINS(label(), "median 6.90 ms: samples of up to 4.000 s");
  outcome.repetitions[1] = repetition_of(6.9e-3, 0.07);
  EXPECT_EQ(label(), "a remark") << "of which the mean is 9 % longer";
}

TEST(RowsTest, RepetitionsThatDifferMarkTheCase) {
  Outcome outcome;
  outcome.repetitions = {{1e-3}, {1.05e-3}, {1.2e-3}};
  EXPECT_EQ(to_rows(kIdentity, outcome).entries[0].at("label"),
            "disturbed: repetitions of 1.00 ms to 1.20 ms");
  outcome.repetitions[2].seconds = 1.1e-3;
  EXPECT_FALSE(to_rows(kIdentity, outcome).entries[0].contains("label"));
}

TEST(RowsTest, ProcessorsThatOthersTookMarkTheCase) {
  Outcome outcome;
  outcome.repetitions = {repetition_of(1e-3, 1e-3), repetition_of(1e-3, 1e-3)};
  outcome.repetitions[0].watched_seconds = outcome.repetitions[1].watched_seconds = 0.5;
  outcome.repetitions[1].taken_seconds = 0.8;
  EXPECT_EQ(to_rows(kIdentity, outcome).entries[0].at("label"),
            "disturbed: others took 0.80 processors");
  // a quarter of a processor
  outcome.repetitions[1].taken_seconds = 0.24;
  EXPECT_FALSE(to_rows(kIdentity, outcome).entries[0].contains("label"));
  // what the kernel's clock cannot tell from nothing
  outcome.repetitions[0].watched_seconds = outcome.repetitions[1].watched_seconds = 0.1;
  outcome.repetitions[1].taken_seconds = 0.09;
  EXPECT_FALSE(to_rows(kIdentity, outcome).entries[0].contains("label"));
}

TEST(RowsTest, TheIntervalOfACaseIsInItsMedianAlone) {
  Outcome outcome;
  for (const double seconds : {1e-3, 1.02e-3, 1.01e-3})
    outcome.repetitions.push_back(repetition_of(seconds, seconds));
  const Json entries = to_rows(kIdentity, outcome).entries;
  for (const Json& entry : entries)
    EXPECT_EQ(entry.contains("interval_ns"), entry.value("aggregate_name", "") == "median");
  const Interval expected = *repetitions_interval({1e-3, 1.02e-3, 1.01e-3});
  EXPECT_NEAR(entries[4].at("interval_ns")[0].get<double>(), 1e9 * expected.low, 1e-3);
  EXPECT_NEAR(entries[4].at("interval_ns")[1].get<double>(), 1e9 * expected.high, 1e-3);
  EXPECT_FALSE(to_rows(kIdentity, three_repetitions()).entries[4].contains("interval_ns"))
      << "of what has no samples of ours";
}

TEST(RowsTest, ASkipIsOneRowWithItsReason) {
  Outcome outcome;
  outcome.skip = "does not fit";
  outcome.label = "a remark";
  const Json entries = to_rows(kIdentity, outcome).entries;
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].at("skipped"), true);
  EXPECT_EQ(entries[0].at("skip_message"), "does not fit");
  EXPECT_EQ(entries[0].at("iterations"), 0);
  EXPECT_EQ(entries[0].at("real_time"), 0);
  EXPECT_EQ(entries[0].at("label"), "a remark");
}

TEST(RowsTest, TheAxesOfACaseAreFields) {
  const std::string name = "ffn/forward/qkv+sdpa/tiny/f32/batch:8/seq:128";
  const Json axes = {{"component", "ffn"}, {"pass", "forward"}, {"variant", "qkv+sdpa"},
                     {"size", "tiny"},     {"dtype", "f32"},    {"batch", 8},
                     {"seq", 128}};
  for (const std::string& run_name : {name, name + "/ranks:2/overlap"}) {
    for (const Json& entry : to_rows({run_name}, three_repetitions()).entries)
      for (const auto& [key, value] : axes.items()) EXPECT_EQ(entry.at(key), value) << key;
  }
  for (const char* other : {"peak/gemm/f32", "all_reduce/f32/bytes:64/ranks:2"})
    EXPECT_FALSE(to_rows({other}, three_repetitions()).entries[0].contains("component"));
}

TEST(RowsTest, AFailureOutweighsRepetitionsThatWentWell) {
  Outcome outcome = three_repetitions();
  outcome.failure = "out of memory";
  outcome.without_time = 1;
  const Json entries = to_rows(kIdentity, outcome).entries;
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].at("error_occurred"), true);
  EXPECT_EQ(entries[0].at("error_message"), "out of memory");
  EXPECT_FALSE(entries[0].contains("label"));
}

TEST(RowsTest, RepetitionsForWhichNoTimeWasLeftAreNamed) {
  Outcome outcome = three_repetitions();
  outcome.without_time = 2;
  for (const Json& entry : to_rows(kIdentity, outcome).entries)
    EXPECT_EQ(entry.at("label"),
              "time left for 3 of 5 repetitions; disturbed: repetitions of 1.0 us to 6.0 us");
}

TEST(RowsTest, TheFileIsGoogleBenchmarksJsonInTheOrderOfTheResults) {
  ResultDocument document;
  document.context = {{"schema_version", kSchemaVersion}, {"date", "today"}};
  document.results = {
      {"b", Json::array({{{"name", "b"}, {"run", 0}}, {{"name", "b"}, {"run", 1}}})},
      {"none", Json::array()},
      {"a", Json::array({{{"name", "a"}}})}};
  const Json parsed = Json::parse(document.text());
  EXPECT_EQ(parsed.begin().key(), "context");
  EXPECT_EQ(parsed.at("context"), document.context);
  EXPECT_EQ(parsed.at("benchmarks"),
            Json({{{"name", "b"}, {"run", 0}}, {{"name", "b"}, {"run", 1}}, {{"name", "a"}}}));
  EXPECT_EQ(Json::parse(ResultDocument{}.text()).at("benchmarks"), Json::array());
}

TEST(RowsTest, RepetitionsMayBeLeftOutWhereTheirAggregatesSayIt) {
  ResultDocument document;
  document.results = {to_rows(kIdentity, three_repetitions()),
                      {"single", Json::array({{{"name", "single"}}})}};
  std::vector<std::string> names;
  const Json parsed = Json::parse(document.text(true));
  for (const Json& entry : parsed.at("benchmarks")) names.push_back(entry.at("name"));
  EXPECT_EQ(names, (std::vector<std::string>{"case_mean", "case_median", "case_stddev", "case_cv",
                                             "single"}));
}

class CountersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // 4 TFLOP/s of GEMMs.
    peaks.restore(testing::made_up_peaks(4e12, 10e9, curve));
    test_case.known_memory = PredictedMemory{.weights = 3 << 20};
  }
  void set_cost(const Cost& cost) {
    component.cost = [cost](const Workload&, Pass) { return cost; };
  }
  // A second-level cache of 1 MiB, a last one of 32 MiB, memory.
  static constexpr int64_t kMiB = 1 << 20;
  const std::map<int64_t, double> curve = {
      {kMiB / 2, 80e9}, {kMiB, 80e9}, {2 * kMiB, 20e9}, {32 * kMiB, 20e9}, {64 * kMiB, 10e9}};
  instruments::Device cpu = instruments::Device::select("cpu");
  instruments::MeasuredPeaks peaks{cpu};
  Component component = testing::linear_component();
  // 6 samples of 4 tokens.
  Case test_case = testing::small_case(component, Pass::forward, Dtype::bf16, 6);
};

TEST_F(CountersTest, RatesByHand) {
  set_cost({.model_flops = 2'000'000'000, .hardware_flops = 1'500'000'000, .bytes = 1000});
  const Counters expected = {{"samples_per_second", 3000},
                             {"tokens_per_second", 12000},
                             {"GB_per_second", 1000 / 0.002 * 1e-9},
                             {"TFLOPS", 2e9 / 0.002 * 1e-12}};
  EXPECT_EQ(rate_counters(test_case, 0.002), expected);
}

TEST_F(CountersTest, MfuIsOfTheModelAndPeakPercentOfWhatRan) {
  set_cost({.model_flops = 2'000'000'000,
            .causal_flops = 1'800'000'000,
            .hardware_flops = 1'600'000'000,
            .bytes = 1000});
  const Counters found = shares(test_case, peaks);
  // No datasheet: MFU is against the measured peak of 4 TFLOP/s.
  EXPECT_DOUBLE_EQ(found.at("MFU_percent") * 500, 25.0);
  EXPECT_DOUBLE_EQ(found.at("MFU_causal_percent") * 500, 22.5);
  EXPECT_DOUBLE_EQ(found.at("peak_percent") * 500, 20.0);
  EXPECT_DOUBLE_EQ(found.at("roof_percent") * 500, 20.0);
}

TEST_F(CountersTest, MfuIsAgainstTheDatasheetWhereItKnowsTheType) {
  set_cost({.model_flops = 2'000'000'000, .hardware_flops = 2'000'000'000, .bytes = 1000});
  instruments::DatasheetPeaks datasheet;
  datasheet.flops = {{"bf16", 10e12}};
  peaks.set_datasheet(datasheet);
  EXPECT_DOUBLE_EQ(shares(test_case, peaks).at("MFU_percent") * 500, 10.0);
  EXPECT_DOUBLE_EQ(shares(test_case, peaks).at("peak_percent") * 500, 25.0);
  test_case.workload.dtype = Dtype::f32;
  EXPECT_DOUBLE_EQ(shares(test_case, peaks).at("MFU_percent") * 500, 25.0);
}

TEST_F(CountersTest, ACaseIsHeldAgainstTheLevelThatItsTrafficReaches) {
  // Whatever the machine's own caches: 24 MiB are three quarters of this last level.
  for (const auto& [bytes, rate] : std::map<int64_t, double>{
           {1000, 80e9}, {kMiB, 80e9}, {24 * kMiB, 20e9}, {64 * kMiB, 10e9}, {80 * kMiB, 10e9}}) {
    set_cost({.model_flops = 1000, .hardware_flops = 1000, .bytes = bytes});
    const double seconds = static_cast<double>(bytes) / rate;
    EXPECT_NEAR(shares(test_case, peaks).at("roof_percent") / seconds, 100.0, 1e-9) << bytes;
  }
}

TEST_F(CountersTest, WithoutGemmsNoFlopRatesAndNoPeakOfGemms) {
  set_cost({.elementwise_flops = 5000, .bytes = 1000});
  test_case.workload.dtype = Dtype::f16;  // whose peak is not known
  EXPECT_FALSE(rate_counters(test_case, 0.5).contains("TFLOPS"));
  const Counters found = shares(test_case, peaks);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found.contains("roof_percent"));
}

TEST_F(CountersTest, FixedCounters) {
  set_cost({.parameters = 7,
            .model_flops = 600,
            .causal_flops = 500,
            .hardware_flops = 700,
            .elementwise_flops = 80,
            .bytes = 200,
            .lookup_flops = 900,
            .opaque_flops = 100});
  Counters expected = {
      {"parameters", 7},       {"model_flops", 600},      {"causal_flops", 500},
      {"hardware_flops", 700}, {"elementwise_flops", 80}, {"bytes", 200},
      {"flop_per_byte", 3.5},  {"peak_memory_MiB", 1.5},  {"predicted_memory_MiB", 3},
      {"allocations", 11},     {"operators", 22},         {"counted_flops", 650},
      {"lookup_flops", 900},   {"opaque_flops", 100}};
  EXPECT_EQ(fixed_counters(test_case, {3 << 19, 11, 22, {650, {}, {}}}), expected);
  expected["library_scratch_MiB"] = 0.5;
  expected["kernels"] = 33;
  EXPECT_EQ(fixed_counters(test_case, {3 << 19, 11, 22, {650, {}, 33}, 1 << 19}), expected);
  set_cost({.elementwise_flops = 80, .bytes = 200});
  EXPECT_DOUBLE_EQ(fixed_counters(test_case, {}).at("flop_per_byte"), 0.4) << "without GEMMs";
}

// Rows as the journal keeps them: 6 samples in `seconds` each, and the aggregates of them.
class SharesTest : public CountersTest {
 protected:
  void SetUp() override {
    CountersTest::SetUp();
    set_cost({.model_flops = 4'000'000'000, .hardware_flops = 4'000'000'000, .bytes = 1000});
    for (const double seconds : {0.004, 0.002})
      result.entries.push_back({{"run_type", "iteration"}, {"samples_per_second", 6 / seconds}});
    result.entries.push_back({{"aggregate_name", "median"}, {"samples_per_second", 6 / 0.003}});
    result.entries.push_back({{"aggregate_name", "cv"}, {"samples_per_second", 0.25}});
  }
  CaseResult result;
};

TEST_F(SharesTest, EveryRowHasThoseOfTheLastPeaks) {
  add_shares(test_case, peaks, result);
  peaks.raise("bf16", 5e12, "reached by another case");
  add_shares(test_case, peaks, result);
  const std::vector<double> expected = {20, 40, 80.0 / 3, 0.25};
  for (size_t i = 0; i < expected.size(); ++i) {
    for (const char* share : {"MFU_percent", "peak_percent", "roof_percent"})
      EXPECT_DOUBLE_EQ(result.entries[i].at(share).get<double>(), expected[i]) << i << share;
  }
}

TEST_F(SharesTest, RowsAboveAPeakKeepAllButTheirSharesAndSayWhy) {
  add_shares(test_case, peaks, result);
  // The faster repetition ran 4 GFLOP in 2 ms.
  peaks.restore(testing::made_up_peaks(2e12 / 1.06, 10e9, curve));
  add_shares(test_case, peaks, result);
  for (const Json& entry : result.entries) {
    EXPECT_TRUE(entry.contains("samples_per_second"));
    EXPECT_FALSE(entry.contains("MFU_percent"));
    EXPECT_FALSE(entry.contains("roof_percent"));
    EXPECT_EQ(entry.at("above_peak"),
              "2 TFLOP/s are 106 % of the measured bf16 peak: the time, the count or the peak is "
              "wrong");
  }
  peaks.restore(testing::made_up_peaks(2e12 / 1.04, 10e9, curve));
  add_shares(test_case, peaks, result);
  EXPECT_FALSE(result.entries[1].contains("above_peak"));
  EXPECT_DOUBLE_EQ(result.entries[1].at("peak_percent").get<double>(), 104);
}

TEST_F(SharesTest, RowsAboveTheDatasheetOrTheRoofHaveNone) {
  instruments::DatasheetPeaks datasheet;
  datasheet.flops = {{"bf16", 1.9e12}};
  peaks.set_datasheet(datasheet);
  add_shares(test_case, peaks, result);
  EXPECT_CONTAINS(result.entries[0].at("above_peak"), "105 % of the datasheet's bf16 peak");
  peaks.set_datasheet(std::nullopt);
  peaks.restore(testing::made_up_peaks(4e12, 10e6, {{kMiB, 40e6}}));
  set_cost({.bytes = 88'000});  // in 2 ms
  add_shares(test_case, peaks, result);
  EXPECT_CONTAINS(result.entries[0].at("above_peak"),
                  "0.002 s are 110 % of what the measured roofline allows");
}

TEST_F(SharesTest, WhatWasSkippedStaysAsItIs) {
  result.entries = Json::array({{{"skipped", true}, {"skip_message", "too large"}}});
  const Json before = result.entries;
  add_shares(test_case, peaks, result);
  EXPECT_EQ(result.entries, before);
}

TEST_F(CountersTest, EveryCounterCanBeAColumn) {
  set_cost({.model_flops = 2, .hardware_flops = 2, .bytes = 2});
  Metering metering;
  metering.profile.kernels = 1;
  metering.library_scratch_bytes = 1;
  metering.profile.device_seconds = 1;
  const Timing timing{{1.0}, 2};
  instruments::SystemSamples samples;
  for (const char* name : {"clock_MHz", "temperature_celsius", "power_watts", "limited_by_power",
                           "limited_by_temperature", "limited_by_hardware"})
    samples.readings[name] = {1, 1, 1, 1};
  const std::vector<std::string> names = column_names();
  for (const Counters& counters : {fixed_counters(test_case, metering),
                                   shares(test_case, peaks),
                                   rate_counters(test_case, 1),
                                   device_counters(metering, timing),
                                   sensor_counters(test_case, samples, 1),
                                   {{"speedup", 1}}}) {
    for (const auto& [name, value] : counters)
      EXPECT_EQ(std::ranges::count(names, name), 1) << name;
  }
}

TEST_F(CountersTest, AGpuTellsTheTimeOfItsKernels) {
  Metering metering;
  EXPECT_TRUE(device_counters(metering, {{2e-3}}).empty()) << "of a CPU";
  // Of a GPU whose profiler saw no kernel: unknown, and not 0 ms and a GPU that waits for the host.
  EXPECT_EQ(device_counters(metering, {{2e-3}, 5, 0}), (Counters{{"runs_per_sample", 5}}));
  EXPECT_FALSE(fixed_counters(test_case, metering).contains("kernels"));
  metering.profile.device_seconds = 1e-3;
  EXPECT_EQ(device_counters(metering, {{2e-3, 2e-3, 9e-3}, 5, 0}),
            (Counters{{"device_ms", 1}, {"host_bound", 1}, {"runs_per_sample", 5}}));
  metering.profile.device_seconds = 1.95e-3;
  EXPECT_EQ(device_counters(metering, {{2e-3, 2e-3, 9e-3}, 1, 0}),
            (Counters{{"device_ms", 1.95}, {"host_bound", 0}}));
}

TEST_F(CountersTest, SensorsGiveClockPowerAndEnergyOfAToken) {
  instruments::SystemSamples samples;
  samples.readings = {{"clock_MHz", {1900, 1950, 1980, 3}},
                      {"power_watts", {500, 600, 700, 3}},
                      {"utilization_percent", {1, 2, 3, 3}},
                      {"limited_by_power", {0, 0.25, 1, 3}},
                      {"limited_by_hardware", {0, 0, 0, 3}}};
  const Counters counters = sensor_counters(test_case, samples, 2);
  const auto tokens = static_cast<double>(test_case.workload.tokens());
  EXPECT_EQ(counters, (Counters{{"clock_MHz", 1950},
                                {"power_W", 600},
                                {"joules_per_token", 1200 / tokens},
                                {"limited_by_power", 0.25}}));
}

TEST_F(CountersTest, PeaksSurviveAJournal) {
  instruments::MeasuredPeaks restored(cpu);
  const auto has = [&](const char* type) {
    return restored.has(Plan{{test_case}, {type}, {}}.peaks_needed());
  };
  EXPECT_FALSE(has("f32"));
  restored.restore(nlohmann::ordered_json::parse(peaks.to_json().dump()));
  EXPECT_TRUE(has("f32"));
  EXPECT_FALSE(has("f16"));
  EXPECT_EQ(restored.to_json(), peaks.to_json());
}

TEST_F(CountersTest, PeaksThatNobodyWroteAreRefused) {
  const std::pair<const char*, const char*> texts[] = {
      {"7", "7: must have an object of measured peaks"},
      {R"({"measured": []})", "must have an object of measured peaks"},
      {R"({"measured": {"f32": 1}})", "1: must have flops_per_second and source"},
      {R"({"measured": {"f32": {"flops_per_second": 0, "source": "x"}}})",
       "flops_per_second = 0: must be a positive number"},
      {R"({"measured": {"bandwidth_curve": [{"bytes": 1, "bytes_per_second": "1", "source": "x"}]}})",
       "bytes_per_second = \"1\": must be a positive number"},
      {R"({"measured": {"bandwidth_curve": [{"bytes": -1, "bytes_per_second": 1, "source": "x"}]}})",
       "bytes = -1: must be a positive integer"},
      {R"({"measured": {"bandwidth_curve": []}})", "bandwidth_curve = []: must be a list of sizes"},
      {R"({"measured": {"f32": {"flops_per_second": 1, "source": 2}}})",
       "source = 2: must be a text"}};
  for (const auto& [text, rule] : texts) {
    instruments::MeasuredPeaks restored(cpu);
    const auto error = testing::error_of<std::invalid_argument>(
        [&] { restored.restore(nlohmann::ordered_json::parse(text)); });
    EXPECT_CONTAINS(error, rule);
  }
}

TEST_F(CountersTest, OnlyWhatRowsAreHeldAgainstIsMeasured) {
  set_cost({.bytes = 1000});
  auto json = peaks.to_json();
  json.at("measured").erase("memory_bandwidth");
  instruments::MeasuredPeaks without_memory(cpu);
  without_memory.restore(json);
  EXPECT_FALSE(without_memory.to_json().at("measured").contains("memory_bandwidth"));
  EXPECT_TRUE(without_memory.has(Plan{{test_case}, {}, {}}.peaks_needed()));
  EXPECT_FALSE(without_memory.has(Plan{{test_case}, {}, {{"peak/bandwidth", ""}}}.peaks_needed()));
  EXPECT_DOUBLE_EQ(without_memory.bandwidth(1000), 80e9);
  set_cost({.bytes = 64 * kMiB + 1});
  EXPECT_FALSE(without_memory.has(Plan{{test_case}, {}, {}}.peaks_needed()));
  EXPECT_TRUE(peaks.has(Plan{{test_case}, {}, {}}.peaks_needed()));
}

TEST_F(CountersTest, WithColdCachesOnlyMemoryIsReached) {
  set_cost({.bytes = 1000});
  auto json = peaks.to_json();
  instruments::MeasuredPeaks cold(cpu, true);
  cold.restore(json);
  EXPECT_DOUBLE_EQ(cold.bandwidth(1000), 10e9);
  json.at("measured").erase("memory_bandwidth");
  instruments::MeasuredPeaks without_memory(cpu, true);
  without_memory.restore(json);
  EXPECT_FALSE(without_memory.has(Plan{{test_case}, {}, {}}.peaks_needed()));
}

TEST_F(CountersTest, ARaisedPeakIsOfItsTypeAlone) {
  peaks.raise("f32", 5e12, "reached by a case");
  EXPECT_DOUBLE_EQ(peaks.measured_flops("f32"), 5e12);
  EXPECT_DOUBLE_EQ(peaks.measured_flops("bf16"), 4e12);
}

}  // namespace
}  // namespace tinyllama::harness

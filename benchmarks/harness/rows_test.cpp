#include "benchmarks/harness/rows.hpp"

#include <gtest/gtest.h>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

const RowIdentity kIdentity{"case/manual_time", 7, 3, "us"};

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
  const CaseResult result = to_rows("case", kIdentity, outcome);
  EXPECT_EQ(result.name, "case");
  ASSERT_EQ(result.entries.size(), 1U) << "no statistics over one repetition";
  const Json expected = {{"name", "case/manual_time"},
                         {"family_index", 7},
                         {"per_family_instance_index", 0},
                         {"run_name", "case/manual_time"},
                         {"run_type", "iteration"},
                         {"repetitions", 3},
                         {"repetition_index", 0},
                         {"threads", 1},
                         {"iterations", 7}};
  Json shared = result.entries[0];
  for (const char* key : {"real_time", "cpu_time", "time_unit", "median_ns", "median_interval_ns",
                          "samples_ns", "bytes", "label"})
    EXPECT_EQ(shared.erase(key), 1U) << key;
  EXPECT_EQ(shared, expected);
  const Json& row = result.entries[0];
  EXPECT_DOUBLE_EQ(row.at("real_time").get<double>(), 4);
  EXPECT_DOUBLE_EQ(row.at("cpu_time").get<double>(), 3);
  EXPECT_EQ(row.at("time_unit"), "us");
  EXPECT_DOUBLE_EQ(row.at("median_ns").get<double>(), 4000);
  EXPECT_NEAR(row.at("median_interval_ns")[0].get<double>(), 1000, 1e-6);
  EXPECT_NEAR(row.at("median_interval_ns")[1].get<double>(), 7000, 1e-6);
  EXPECT_EQ(row.at("samples_ns"), Json({4000, 1000, 2000, 3000, 7000, 5000, 6000}));
  EXPECT_EQ(row.at("bytes"), 12);
  EXPECT_EQ(row.at("label"), "a remark");
}

TEST(RowsTest, OfManySamplesSomeAreKept) {
  Outcome outcome;
  outcome.repetitions = {{1e-6, 0, 1000, {}, std::vector<double>(1000, 1e-6)}};
  const CaseResult result = to_rows("case", kIdentity, outcome);
  EXPECT_EQ(result.entries[0].at("samples_ns").size(), kMostSamplesInARow);
}

TEST(RowsTest, StatisticsAreThoseOfTheRepetitions) {
  const Json entries = to_rows("case", kIdentity, three_repetitions()).entries;
  ASSERT_EQ(entries.size(), 3U + 4U);
  const auto value = [&](size_t index, const char* key) {
    return entries[index].at(key).get<double>();
  };
  EXPECT_EQ(entries[3].at("name"), "case/manual_time_mean");
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

TEST(RowsTest, ASkipIsOneRowWithItsReason) {
  Outcome outcome;
  outcome.skip = "does not fit";
  outcome.label = "a remark";
  const Json entries = to_rows("case", kIdentity, outcome).entries;
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].at("skipped"), true);
  EXPECT_EQ(entries[0].at("skip_message"), "does not fit");
  EXPECT_EQ(entries[0].at("iterations"), 0);
  EXPECT_EQ(entries[0].at("real_time"), 0);
  EXPECT_EQ(entries[0].at("label"), "a remark");
}

TEST(RowsTest, AFailureOutweighsRepetitionsThatWentWell) {
  Outcome outcome = three_repetitions();
  outcome.failure = "out of memory";
  outcome.without_time = 1;
  const Json entries = to_rows("case", kIdentity, outcome).entries;
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].at("error_occurred"), true);
  EXPECT_EQ(entries[0].at("error_message"), "out of memory");
  EXPECT_FALSE(entries[0].contains("label"));
}

TEST(RowsTest, RepetitionsForWhichNoTimeWasLeftAreNamed) {
  Outcome outcome = three_repetitions();
  outcome.without_time = 2;
  for (const Json& entry : to_rows("case", kIdentity, outcome).entries)
    EXPECT_EQ(entry.at("label"), "time left for 3 of 5 repetitions");
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

}  // namespace
}  // namespace tinyllama::harness

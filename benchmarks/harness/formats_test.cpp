#include "benchmarks/harness/formats.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "benchmarks/harness/counters.hpp"
#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

// With everything that a field of CSV may not hold as it is.
constexpr const char* kReason = "predicted 1,5 GiB \"exceeds\"\nthe limit | <b>";

std::string name_of(int64_t batch, const std::string& variant = "baseline") {
  return "ffn/forward/" + variant + "/tiny/f32/batch:" + std::to_string(batch) + "/seq:8";
}

CaseResult measured(const std::string& name, std::vector<double> milliseconds,
                    Counters counters = {}) {
  Outcome outcome;
  for (const double time : milliseconds)
    outcome.repetitions.push_back({time * 1e-3, time * 2e-3, 5, counters, {time * 1e-3}});
  return to_rows({name, 0, std::ssize(milliseconds)}, outcome);
}

CaseResult stopped(const std::string& name, const std::string& skip, const std::string& failure) {
  Outcome outcome;
  outcome.skip = skip;
  outcome.failure = failure;
  return to_rows({name, 0, 3}, outcome);
}

// Fields of RFC 4180.
std::vector<std::vector<std::string>> parsed(const std::string& csv) {
  std::vector<std::vector<std::string>> lines = {{""}};
  bool is_quoted = false;
  for (size_t i = 0; i < csv.size(); ++i) {
    std::string& field = lines.back().back();
    if (csv[i] == '"') {
      if (is_quoted && csv.substr(i + 1, 1) == "\"")
        field += csv[i++];
      else
        is_quoted = !is_quoted;
    } else if (!is_quoted && csv[i] == ',') {
      lines.back().emplace_back();
    } else if (!is_quoted && csv[i] == '\n') {
      lines.push_back({""});
    } else {
      field += csv[i];
    }
  }
  EXPECT_EQ(lines.back(), std::vector<std::string>{""}) << "ends with a line break";
  lines.pop_back();
  return lines;
}

using Row = std::map<std::string, std::string>;

std::vector<Row> rows_of(const std::string& csv) {
  const auto lines = parsed(csv);
  std::vector<Row> rows;
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].size(), lines[0].size());
    Row& row = rows.emplace_back();
    for (size_t j = 0; j < lines[i].size(); ++j) row[lines[0].at(j)] = lines[i][j];
  }
  return rows;
}

class FormatsTest : public ::testing::Test {
 protected:
  ResultDocument document{
      {{"device",
        {{"name", "A, B"}, {"architecture", "x86-64"}, {"backend", "cpu"}, {"driver_version", ""}}},
       {"threads", 2},
       {"torch_version", "2.13.0"},
       {"git_commit", "0123456789abcdef"},
       {"git_dirty", true},
       {"date", "2026-03-04T05:06:07+00:00"},
       {"sizes", {{"tiny", {{"n_layers", 4}}}}}},
      {}};
};

TEST_F(FormatsTest, EveryCounterIsAColumnThoughOnlyTheLastCaseHasIt) {
  document.results = {measured(name_of(1), {1.0}),
                      measured(name_of(2), {2.0}, {{"kernels", 3}, {"not_in_the_schema", 0.5}})};
  const auto lines = parsed(csv_text(document, "a.json"));
  const std::set<std::string> columns(lines[0].begin(), lines[0].end());
  EXPECT_EQ(columns.size(), lines[0].size()) << "none twice";
  for (const Counter& counter : counters())
    EXPECT_TRUE(columns.contains(counter.key)) << counter.key;
  const auto rows = rows_of(csv_text(document, "a.json"));
  EXPECT_EQ(rows[0].at("kernels"), "");
  EXPECT_EQ(rows[1].at("kernels"), "3.0");
  EXPECT_EQ(rows[0].at("not_in_the_schema"), "");
  EXPECT_EQ(rows[1].at("not_in_the_schema"), "0.5");
  EXPECT_EQ(lines[0].back(), "not_in_the_schema") << "after those that every run has";
}

TEST_F(FormatsTest, ARowHasAxesTimeAndWhatItWasMeasuredWith) {
  document.results = {measured(name_of(4), {2.0, 1.0, 4.0}, {{"TFLOPS", 0.25}})};
  const Row row = rows_of(csv_text(document, "a.json")).at(0);
  const Row expected = {
      {"case", name_of(4)},    {"component", "ffn"},   {"pass", "forward"},
      {"variant", "baseline"}, {"size", "tiny"},       {"dtype", "f32"},
      {"batch", "4"},          {"seq", "8"},           {"n_layers", "4"},
      {"hidden_dim", ""},      {"status", "measured"}, {"reason", ""},
      {"repetitions", "3"},    {"time_ms", "2.0"},     {"time_range_percent", "150.0"},
      {"cpu_time_ms", "4.0"},  {"TFLOPS", "0.25"},     {"device", "A, B"},
      {"driver_version", ""},  {"threads", "2"},       {"git_dirty", "true"},
      {"file", "a.json"}};
  for (const auto& [column, value] : expected) EXPECT_EQ(row.at(column), value) << column;
  EXPECT_LT(std::stod(row.at("time_low_ms")), 2);
  EXPECT_GT(std::stod(row.at("time_high_ms")), 2);
  EXPECT_CONTAINS(row.at("disturbed"), "repetitions of 1.00 ms to 4.00 ms");
  EXPECT_CONTAINS(row.at("label"), "disturbed: ");
  // of one repetition nothing is said about others
  document.results = {measured(name_of(4), {2.0})};
  const Row alone = rows_of(csv_text(document, "")).at(0);
  for (const char* column : {"time_low_ms", "time_range_percent", "disturbed", "file"})
    EXPECT_EQ(alone.at(column), "") << column;
}

TEST_F(FormatsTest, SkippedAndFailedCasesHaveTheirReasonAndNoFigures) {
  document.results = {stopped(name_of(1), kReason, ""), stopped(name_of(2), "", kReason)};
  const auto rows = rows_of(csv_text(document, ""));
  ASSERT_EQ(rows.size(), 2U);
  for (const Row& row : rows) {
    EXPECT_EQ(row.at("reason"), kReason);
    for (const char* column : {"time_ms", "cpu_time_ms", "repetitions", "TFLOPS"})
      EXPECT_EQ(row.at(column), "") << column;
    EXPECT_EQ(row.at("component"), "ffn");
  }
  EXPECT_EQ(rows[0].at("status"), "skipped");
  EXPECT_EQ(rows[1].at("status"), "failed");
  const std::string markdown = markdown_text(document, {});
  EXPECT_CONTAINS(markdown, "| batch | time |\n| --- | --- |\n| 1 | skipped |\n| 2 | FAILED |\n");
  const std::string said = ": predicted 1,5 GiB \"exceeds\" the limit \\| &lt;b>\n";
  EXPECT_CONTAINS(markdown, "Skipped:\n\n- " + name_of(1) + said);
  EXPECT_CONTAINS(markdown, "FAILED:\n\n- " + name_of(2) + said);
}

TEST_F(FormatsTest, ANumberThatIsNoneIsMissing) {
  document.results = {
      measured(name_of(1), {1.0}, {{"TFLOPS", std::nan("")}, {"power_W", HUGE_VAL}})};
  const Row row = rows_of(csv_text(document, "")).at(0);
  EXPECT_EQ(row.at("TFLOPS") + row.at("power_W"), "");
}

TEST_F(FormatsTest, LinesOfJsonHaveTheColumnsOfCsv) {
  document.results = {measured(name_of(1), {1.0}, {{"TFLOPS", 0.25}}),
                      stopped(name_of(2), kReason, "")};
  const auto header = parsed(csv_text(document, "")).at(0);
  std::istringstream lines(jsonl_text(document, ""));
  std::vector<Json> rows;
  for (std::string line; std::getline(lines, line);) {
    rows.push_back(Json::parse(line));
    std::vector<std::string> names;
    for (const auto& [name, value] : rows.back().items()) names.push_back(name);
    EXPECT_EQ(names, header);
  }
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].at("TFLOPS"), 0.25);
  EXPECT_EQ(rows[0].at("threads"), 2);
  EXPECT_EQ(rows[0].at("git_dirty"), true);
  EXPECT_EQ(rows[1].at("reason"), kReason);
  EXPECT_TRUE(rows[1].at("time_ms").is_null());
}

TEST_F(FormatsTest, OfAPeakTheBestRepetitionCounts) {
  CaseResult peak = measured("peak/gemm/f32", {4.0, 2.0, 3.0}, {{"TFLOPS", 0.25}});
  peak.entries[1]["TFLOPS"] = 0.5;
  document.results = {peak, measured(name_of(1), {1.0})};
  const Row row = rows_of(csv_text(document, "")).at(0);
  EXPECT_EQ(row.at("TFLOPS"), "0.5");
  EXPECT_EQ(row.at("time_ms"), "2.0");
  EXPECT_EQ(row.at("repetitions"), "3");
  EXPECT_EQ(row.at("time_low_ms") + row.at("time_range_percent") + row.at("component"), "");
  EXPECT_CONTAINS(markdown_text(document, {}), "| peak | TFLOP/s |");
}

TEST_F(FormatsTest, MarkdownHasColumnsForWhatVaries) {
  const Counters counters = {{"MFU_percent", 25}, {"peak_memory_MiB", 1.5}, {"kernels", 3}};
  document.results = {
      measured(name_of(1), {1.5}, counters),
      measured(name_of(16), {12.0}, {{"MFU_percent", 50}, {"peak_memory_MiB", 1.5}})};
  EXPECT_EQ(markdown_text(document, {}),
            "| batch | time | MFU % |\n"
            "| --- | --- | --- |\n"
            "| 1 | 1.50 ms | 25.0 |\n"
            "| 16 | 12.00 ms | 50.0 |\n"
            "\n"
            "All rows: component ffn, pass forward, size tiny, seq 8, dtype f32, variant baseline, "
            "repetitions 1, memory MiB 1.5.\n"
            "\n"
            "Build: commit 01234567 with changes, libtorch 2.13.0, A, B (x86-64, cpu), 2 threads, "
            "2026-03-04.\n");
  EXPECT_CONTAINS(markdown_text(document, {"kernels"}), "| time | MFU % | kernels |");
}

TEST_F(FormatsTest, OfOneCaseTheFiguresStayColumns) {
  document.results = {measured(name_of(1), {1.5}, {{"MFU_percent", 25}})};
  EXPECT_CONTAINS(markdown_text(document, {}),
                  "| time | repetitions | MFU % |\n| --- | --- | --- |\n| 1.50 ms | 1 | 25.0 |\n");
  // and where the others were skipped they are said to be of the one
  document.results.push_back(stopped(name_of(2), "does not fit", ""));
  EXPECT_CONTAINS(markdown_text(document, {}), "| 2 | skipped | - | - |\n");
}

TEST_F(FormatsTest, OfNoCaseThereIsAWordOrAHeading) {
  EXPECT_CONTAINS(markdown_text(document, {}), "No case was measured.");
  EXPECT_EQ(parsed(csv_text(document, "")).size(), 1U);
  EXPECT_EQ(jsonl_text(document, ""), "");
}

}  // namespace
}  // namespace tinyllama::harness

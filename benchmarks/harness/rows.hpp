// What became of a case, its rows, Google Benchmark's JSON objects with our counters, the file that
// they make up, and back.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"

namespace tinyllama::harness {

using Json = nlohmann::ordered_json;
using Counters = std::map<std::string, double>;

struct Repetition {
  double seconds = 0;      ///< of an iteration: their median
  double cpu_seconds = 0;  ///< of an iteration, of the timing thread: their mean
  int64_t iterations = 1;
  Counters counters{};
  std::vector<double>
      samples{};               ///< seconds of each iteration; none where they are no figure of ours
  double watched_seconds = 0;  ///< of the clock, while others' work was watched
  double taken_seconds = 0;    ///< of processors, which others took from our threads meanwhile
};

/// What is said of a case beside its figures.
struct Remarks {
  std::string label;
  std::string skip;     ///< why it was not measured
  std::string failure;  ///< what was wrong with it; outweighs repetitions that went well

  void add_to_label(const std::string& text) {
    label += label.empty() || text.empty() ? text : "; " + text;
  }
};

struct Outcome : Remarks {
  bool interrupted = false;  ///< before all repetitions were done: no result
  int64_t without_time = 0;  ///< repetitions left out because the case's time was used up
  std::vector<Repetition> repetitions;
};

/// Format of context and counters; results/schema.json describes it.
inline constexpr int kSchemaVersion = 4;

/// At most so many samples of a repetition are kept in its row, evenly spaced in time.
inline constexpr size_t kMostSamplesInARow = 200;

/// A case is marked as disturbed where the mean and the median of a repetition's samples, or two
/// repetitions, differ by more than this share of the median,
inline constexpr double kDisturbed = 0.10;
/// or where other processes took more processors than this from our threads, on average over the
/// timing.
inline constexpr double kTaken = 0.25;
/// How the reason begins in the label of such a case.
inline constexpr const char* kDisturbedLabel = "disturbed: ";

/// What identifies a case in Google Benchmark's rows.
struct RowIdentity {
  std::string run_name;
  int64_t family_index = 0;
  int64_t repetitions = 1;       ///< requested
  std::string time_unit = "ms";  ///< ns, us, ms or s
};

struct CaseResult {
  std::string name;
  Json entries = Json::array();  ///< every repetition and, of two or more, mean, median, stddev and
                                 ///< cv; or the one entry of a skip or failure

  /// Why it was skipped, or has failed; empty where neither.
  std::string skip() const { return message("skipped", "skip_message"); }
  std::string failure() const { return message("error_occurred", "error_message"); }
  /// Of its entries the median, or the only repetition; null where it has no time.
  const Json* median() const;
  /// Of a peak, peak/..., the best repetition, which counts; null for another case, and where it
  /// has no rate.
  const Json* best_peak() const;

 private:
  std::string message(const char* flag, const char* key) const;
};

/// Why a row is marked as disturbed; empty where it is not.
std::string disturbance_of(const Json& entry);

/// "ns", "us", "ms" or "s" in seconds.
double seconds_of_unit(const std::string& time_unit);

/// A repetition's time is the median of its samples, the case's the median over its repetitions.
/// Where the time is doubtful, the label says why after kDisturbedLabel.
CaseResult to_rows(const RowIdentity& identity, const Outcome& outcome);

struct ResultDocument {
  Json context;
  std::vector<CaseResult> results;
  /// `aggregates_only`: without the repetitions that there are aggregates of.
  std::string text(bool aggregates_only = false) const;
};

/// A case with its median repetition.
struct MeasuredCase {
  const Case* test_case;
  double seconds = 0;  ///< median over repetitions of the median over samples
  /// Half the 95 % interval of the time over the time; nothing for a single repetition.
  std::optional<double> precision{};
  int64_t repetitions = 0;
  Json entry = Json::object();  ///< Google Benchmark's: median, or the only repetition
  std::string why_not{};        ///< in tables: "skipped" or "FAILED" where there is no time
};

/// Looks a case's measurement up among its entries; nothing if it was skipped or failed.
std::optional<MeasuredCase> measured_case(const Case& test_case, const CaseResult& result);

}  // namespace tinyllama::harness

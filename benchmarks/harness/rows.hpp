// From the repetitions of a case to its rows, Google Benchmark's JSON objects with our counters,
// the file that they make up, and back.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/outcome.hpp"

namespace tinyllama::harness {

using Json = nlohmann::ordered_json;

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
  std::string name;              ///< the plan's name of the case
  Json entries = Json::array();  ///< every repetition and, of two or more, mean, median, stddev and
                                 ///< cv; or the one entry of a skip or failure
};

/// A repetition's time is the median of its samples, the case's the median over its repetitions.
/// Where the time is doubtful, the label says why after kDisturbedLabel.
CaseResult to_rows(const std::string& name, const RowIdentity& identity, const Outcome& outcome);

/// Seconds of a unit of `time_unit`.
double seconds_of_unit(const std::string& time_unit);

struct ResultDocument {
  Json context;
  std::vector<CaseResult> results;
  /// `aggregates_only`: without the repetitions that there are aggregates of.
  std::string text(bool aggregates_only = false) const;
};

/// A case with its median repetition.
struct MeasuredCase {
  const Case* test_case;
  double seconds;  ///< median over repetitions of the median over samples
  /// Half the 95 % interval of the time over the time; nothing for a single repetition.
  std::optional<double> precision;
  int64_t repetitions;
  Json entry;  ///< Google Benchmark's object: median, or the only repetition
};

/// Looks a case's measurement up among its entries; nothing if it was skipped or failed.
std::optional<MeasuredCase> measured_case(const Case& test_case, const CaseResult& result);

/// The time of a row, whatever its unit.
double seconds_of(const Json& entry);

}  // namespace tinyllama::harness

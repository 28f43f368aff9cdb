// From samples to rows: Google Benchmark's JSON objects of a case, and the file that they make up.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tinyllama::harness {

using Json = nlohmann::ordered_json;
using Counters = std::map<std::string, double>;

/// Format of context and counters; results/schema.json describes it.
inline constexpr int kSchemaVersion = 3;

/// Samples that a row keeps of its repetition, evenly spaced in time.
inline constexpr size_t kMostSamplesInARow = 200;

struct Repetition {
  double seconds = 0;      ///< of an iteration: their mean
  double cpu_seconds = 0;  ///< of an iteration, of the timing thread
  int64_t iterations = 1;
  Counters counters{};
  std::vector<double>
      samples{};  ///< seconds of each iteration; none where they are no figure of ours
};

/// What became of a case.
struct Outcome {
  std::string label;
  std::string skip;          ///< why it was not measured
  std::string failure;       ///< what was wrong with it; outweighs repetitions that went well
  bool interrupted = false;  ///< before all repetitions were done: no result
  int64_t without_time = 0;  ///< repetitions left out because the case had had its time
  std::vector<Repetition> repetitions;

  void add_to_label(const std::string& text) {
    label += label.empty() || text.empty() ? text : "; " + text;
  }
};

/// How Google Benchmark calls a case.
struct RowIdentity {
  std::string run_name;
  int64_t family_index = 0;
  int64_t repetitions = 1;       ///< that were asked for
  std::string time_unit = "ms";  ///< ns, us, ms or s
};

struct CaseResult {
  std::string name;              ///< the plan's name of the case
  Json entries = Json::array();  ///< every repetition and, of two or more, mean, median, stddev and
                                 ///< cv; or one skip or failure
};

CaseResult to_rows(const std::string& name, const RowIdentity& identity, const Outcome& outcome);

/// Seconds of a unit of `time_unit`.
double seconds_of_unit(const std::string& time_unit);

struct ResultDocument {
  Json context;
  std::vector<CaseResult> results;
  std::string text() const;
};

}  // namespace tinyllama::harness

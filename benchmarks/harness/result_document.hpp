// The result file: Google Benchmark's own JSON with our context, written whole or not at all.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tinyllama::harness {

using Json = nlohmann::ordered_json;

/// Format of context and counters; results/schema.json describes it.
inline constexpr int kSchemaVersion = 3;

/// Why cases, or their later repetitions, are skipped once a signal has come. A case with such an
/// entry is not over: it is no result, and a resumed run measures it anew.
inline constexpr const char* kInterrupted = "interrupted";

/// Why repetitions are skipped once a case has had its time. Those before them are its result.
inline constexpr const char* kNoTimeLeft = "no time left for this repetition";

/// Name under which a repetition says how many iterations it timed, where its time ran out before
/// it had timed all; CaseReporter makes it the row's count.
inline constexpr const char* kTimedIterations = "timed_iterations";

struct CaseResult {
  std::string name;              ///< the plan's name of the case
  Json entries = Json::array();  ///< Google Benchmark's objects: every repetition, aggregates, or
                                 ///< one skip or failure
};

struct ResultDocument {
  Json context;
  std::vector<CaseResult> results;
  std::string text() const;
};

}  // namespace tinyllama::harness

#include "benchmarks/harness/reporter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace tinyllama::harness {
namespace {

// Google Benchmark's own reporter writes the objects, so that they are its format whatever its
// version.
Json to_json(const std::vector<benchmark::BenchmarkReporter::Run>& runs) {
  std::ostringstream out;
  std::ostringstream errors;
  benchmark::JSONReporter reporter;
  reporter.SetOutputStream(&out);
  reporter.SetErrorStream(&errors);
  reporter.ReportContext(benchmark::BenchmarkReporter::Context());
  if (!runs.empty()) reporter.ReportRuns(runs);
  reporter.Finalize();
  Json document = Json::parse(out.str());
  for (Json& entry : document["benchmarks"]) {
    const auto timed = entry.find(kTimedIterations);
    if (timed == entry.end()) continue;
    if (!entry.contains("aggregate_name")) entry["iterations"] = timed->get<int64_t>();
    entry.erase(kTimedIterations);
  }
  return document;
}

bool was_skipped(const Json& entry) {
  return entry.contains("skipped") || entry.contains("error_occurred");
}

// A skip or failure is one entry, however often it was repeated; repetitions that time did not
// allow leave none, but those that an interrupt did not allow are all that is left of their case.
Json without_repeated_skips(const Json& entries) {
  Json kept = Json::array();
  for (const auto& entry : entries) {
    if (!was_skipped(entry)) kept.push_back(entry);
  }
  bool failed = false;
  for (const auto& entry : entries) {
    if (entry.contains("error_occurred") && !failed) {
      // A failure outweighs repetitions that went well.
      kept = Json::array({entry});
      failed = true;
    }
  }
  for (const auto& entry : entries) {
    if (entry.value("skip_message", "") == kInterrupted && !failed) return Json::array({entry});
  }
  if (kept.empty() && !entries.empty()) kept.push_back(entries.front());
  const auto dropped = std::count_if(entries.begin(), entries.end(), [](const Json& entry) {
    return entry.value("skip_message", "") == kNoTimeLeft;
  });
  if (dropped > 0) {
    const auto measured = std::count_if(kept.begin(), kept.end(), [](const Json& entry) {
      return entry.value("run_type", "") == "iteration";
    });
    const std::string note =
        fmt::format("time left for {} of {} repetitions", measured, measured + dropped);
    for (Json& entry : kept) {
      const std::string label = entry.value("label", "");
      entry["label"] = label.empty() ? note : label + "; " + note;
    }
  }
  return kept;
}

}  // namespace

bool CaseReporter::ReportContext(const Context& /*context*/) {
  return true;
}

void CaseReporter::ReportRuns(const std::vector<Run>& runs) {
  if (runs.empty()) return;
  const std::string& name = runs.front().run_name.function_name;
  if (pending_.name != name) hand_on();
  pending_.name = name;
  const Json entries = to_json(runs);
  for (const auto& entry : entries.at("benchmarks")) pending_.entries.push_back(entry);
  const bool are_aggregates = runs.front().run_type == Run::RT_Aggregate;
  const auto measured =
      std::count_if(runs.begin(), runs.end(), [](const Run& run) { return !run.skipped; });
  // Aggregates follow where there are two repetitions to aggregate.
  if (are_aggregates || measured < 2) hand_on();
}

void CaseReporter::hand_on() {
  if (pending_.entries.empty()) return;
  CaseResult finished{pending_.name, without_repeated_skips(pending_.entries)};
  pending_ = {};
  on_case_(std::move(finished));
}

Json CaseReporter::benchmark_context() {
  return to_json({}).at("context");
}

}  // namespace tinyllama::harness

#include "benchmarks/harness/speedups.hpp"

#include <map>
#include <optional>
#include <string>

#include "core/statistics.hpp"

namespace tinyllama::harness {
namespace {

struct Measured {
  MeasuredCase row;
  CaseResult* result;
};

// The measured cases of one component, pass and point.
struct Point {
  std::optional<Measured> baseline;
  std::vector<Measured> variants;
};

std::map<std::string, Point> points_of(const std::vector<Case>& cases,
                                       std::vector<CaseResult>& results) {
  std::map<std::string, CaseResult*> by_name;
  for (CaseResult& result : results) by_name[result.name] = &result;
  std::map<std::string, Point> points;
  for (const Case& test_case : cases) {
    const auto own = by_name.find(test_case.name());
    if (own == by_name.end()) continue;
    const auto row = measured_case(test_case, *own->second);
    if (!row) continue;
    Case baseline = test_case;
    baseline.workload.variant = Variant();
    Point& point = points[baseline.name()];
    if (test_case.name() == baseline.name())
      point.baseline = Measured{*row, own->second};
    else
      point.variants.push_back({*row, own->second});
  }
  return points;
}

void set(const Measured& measured, double speedup, const std::optional<Interval>& interval) {
  for (Json& entry : measured.result->entries) {
    const std::string aggregate = entry.value("aggregate_name", "");
    if (!entry.contains("real_time") || aggregate == "stddev" || aggregate == "cv") continue;
    entry["speedup"] = speedup;
    if (!interval) continue;
    entry["speedup_low"] = interval->low;
    entry["speedup_high"] = interval->high;
  }
}

std::vector<double> ratios(const std::vector<double>& of, const std::vector<double>& over) {
  std::vector<double> found;
  for (size_t round = 0; round < of.size(); ++round) found.push_back(of[round] / over[round]);
  return found;
}

}  // namespace

void add_speedups(const std::vector<Case>& cases, std::vector<CaseResult>& results,
                  const MeasureInterleaved& measure) {
  for (const auto& [name, point] : points_of(cases, results)) {
    if (!point.baseline) continue;
    set(*point.baseline, 1, std::nullopt);
    std::vector<const Case*> timed = {point.baseline->row.test_case};
    for (const Measured& variant : point.variants) timed.push_back(variant.row.test_case);
    const SecondsOfRounds rounds = measure && timed.size() > 1 ? measure(timed) : SecondsOfRounds();
    for (size_t i = 0; i < point.variants.size(); ++i) {
      const Measured& variant = point.variants[i];
      if (rounds.empty()) {
        set(variant, point.baseline->row.seconds / variant.row.seconds, std::nullopt);
      } else {
        const auto gained = ratios(rounds.front(), rounds[i + 1]);
        set(variant, median(gained), median_interval(gained));
      }
    }
  }
}

}  // namespace tinyllama::harness

#include "benchmarks/harness/interleaved.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/prepared_case.hpp"
#include "core/statistics.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kSliceSeconds = 0.02;
constexpr int64_t kMostRounds = 9;

// Each is checked beside those before it, but also has to be timed beside those after it.
bool fit_together(const instruments::Device& device, const std::vector<const Case*>& cases,
                  const Options& options) {
  const int64_t bytes = std::accumulate(
      cases.begin(), cases.end(), int64_t{0},
      [](int64_t sum, const Case* test_case) { return sum + test_case->memory().peak(); });
  return bytes <= memory_budget(device, options.memory_limit_bytes, 0).bytes;
}

SecondsOfRounds time_rounds(Preparation& preparation, const std::vector<const Case*>& cases) {
  std::deque<PreparedCase> prepared;
  double round_seconds = 0;
  for (const Case* test_case : cases) {
    const PreparedCase& added = prepared.emplace_back(
        preparation, *test_case, Steps{.proof = Steps::Proof::none, .meters = false});
    if (added.is_over()) return {};
    round_seconds += std::max(kSliceSeconds, added.warm_seconds());
  }
  const auto rounds = std::min(
      kMostRounds, static_cast<int64_t>(preparation.options.max_seconds_per_case / round_seconds));
  SecondsOfRounds of_rounds(rounds < 1 ? 0 : cases.size());
  std::vector<size_t> order(cases.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(1);
  for (int64_t round = 0; round < rounds; ++round) {
    std::ranges::shuffle(order, random);
    for (const size_t i : order) {
      prepared[i].guarded([&] {
        of_rounds[i].push_back(
            median(time_until(preparation.device, prepared[i].item(), preparation.flusher.get(),
                              {.min_seconds = kSliceSeconds})
                       .seconds));
      });
      if (prepared[i].is_over()) return {};
    }
  }
  return of_rounds;
}

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
  std::map<std::string, Point> points;
  for (const Case& test_case : cases) {
    const auto own = std::ranges::find(results, test_case.name(), &CaseResult::name);
    if (own == results.end()) continue;
    const auto row = measured_case(test_case, *own);
    if (!row) continue;
    Point& point = points[test_case.point()];
    if (test_case.name() == test_case.point())
      point.baseline = Measured{*row, &*own};
    else
      point.variants.push_back({*row, &*own});
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

SecondsOfRounds time_cases_interleaved(const instruments::Device& device,
                                       const std::vector<const Case*>& cases,
                                       const Options& options) {
  SecondsOfRounds of_rounds;
  failure_of(device, options.memory_limit_bytes, [&] {
    if (!fit_together(device, cases, options)) return;
    Preparation preparation(device, options);
    of_rounds = time_rounds(preparation, cases);
  });
  return of_rounds;
}

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

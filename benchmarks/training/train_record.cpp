#include "benchmarks/training/train_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tinyllama::training {
namespace {

// The first step loads libraries and fills caches: it is no step like the others, and counts only
// where there is no other.
std::vector<const StepRecord*> averaged(const std::vector<StepRecord>& steps) {
  std::vector<const StepRecord*> chosen;
  for (const StepRecord& step : steps) {
    if (step.step > 1 || steps.size() == 1) chosen.push_back(&step);
  }
  return chosen;
}

std::vector<double> seconds_of(const std::vector<const StepRecord*>& steps, Profiled profiled) {
  std::vector<double> seconds;
  for (const StepRecord* step : steps) {
    // An evaluation is no part of the work that profilers may slow down.
    if (step->profiled == profiled)
      seconds.push_back(step->times.total() - step->times[Phase::evaluation]);
  }
  return seconds;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double centre = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - centre) * (value - centre);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

Json mean_or_null(const std::vector<double>& values) {
  return values.empty() ? Json(nullptr) : Json(mean(values));
}

Json overhead_percent(const std::vector<double>& profiled, const std::vector<double>& plain) {
  if (profiled.empty() || plain.empty()) return nullptr;
  return 100.0 * (median(profiled) / median(plain) - 1.0);
}

// JSON has no NaN.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

bool is_part_of_launch(Phase phase) {
  return phase == Phase::forward || phase == Phase::backward || phase == Phase::optimizer;
}

double mean_of_phase(const std::vector<const StepRecord*>& steps, Phase phase) {
  std::vector<double> seconds;
  for (const StepRecord* step : steps) seconds.push_back(step->times[phase]);
  return mean(seconds);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Json summarize(const std::vector<StepRecord>& steps, int64_t samples, int64_t tokens,
               bool whole_steps) {
  const auto chosen = averaged(steps);
  std::vector<double> totals;
  int64_t peak = 0;
  for (const StepRecord* step : chosen) totals.push_back(step->times.total());
  Json scratch = nullptr;
  for (const StepRecord& step : steps) {
    peak = std::max(peak, step.peak_memory_bytes);
    if (step.library_scratch_bytes)
      scratch =
          std::max(scratch.is_null() ? 0 : scratch.get<int64_t>(), *step.library_scratch_bytes);
  }
  const double average = mean(totals);
  const auto rate = [&](int64_t count) {
    return average > 0 ? Json(static_cast<double>(count) / average) : Json(nullptr);
  };
  Json summary = {
      {"steps_completed", steps.size()},
      {"first_step_seconds", steps.empty() ? Json(nullptr) : Json(steps.front().times.total())},
      {"steps_averaged", totals.size()},
      {"average_step_seconds", mean_or_null(totals)},
      {"median_step_seconds", totals.empty() ? Json(nullptr) : Json(median(totals))},
      {"stddev_step_seconds", totals.empty() ? Json(nullptr) : Json(deviation(totals))},
      {"samples_per_second", rate(samples)},
      {"tokens_per_second", rate(tokens)},
      {"peak_memory_bytes", peak},
      {"library_scratch_bytes", scratch},
      {"final_loss", steps.empty() ? Json(nullptr) : number(steps.back().loss)}};
  Json breakdown;
  for (const Phase phase : kPhases) {
    const bool unknown = chosen.empty() || (whole_steps && is_part_of_launch(phase));
    const double seconds = mean_of_phase(chosen, phase);
    breakdown[to_string(phase)] = {
        {"seconds", unknown ? Json(nullptr) : Json(seconds)},
        {"percent", unknown || average == 0 ? Json(nullptr) : Json(100.0 * seconds / average)}};
  }
  for (const Phase phase : {Phase::forward, Phase::backward, Phase::optimizer}) {
    summary[fmt::format("average_{}_seconds", to_string(phase))] =
        breakdown[to_string(phase)]["seconds"];
  }
  summary["breakdown"] = breakdown;
  const auto plain = seconds_of(chosen, Profiled::no);
  const auto operators = seconds_of(chosen, Profiled::operators);
  const auto memory = seconds_of(chosen, Profiled::memory);
  summary["plain_steps"] = plain.size();
  summary["plain_average_step_seconds"] = mean_or_null(plain);
  summary["operator_profiled_average_step_seconds"] = mean_or_null(operators);
  summary["memory_profiled_average_step_seconds"] = mean_or_null(memory);
  summary["operator_profiling_overhead_percent"] = overhead_percent(operators, plain);
  summary["memory_profiling_overhead_percent"] = overhead_percent(memory, plain);
  return summary;
}

Json steps_json(const std::vector<StepRecord>& steps, bool whole_steps) {
  Json list = Json::array();
  for (const StepRecord& step : steps) {
    Json row = {
        {"step", step.step}, {"loss", number(step.loss)}, {"time_seconds", step.times.total()}};
    for (const Phase phase : kPhases) {
      const bool unknown = whole_steps && is_part_of_launch(phase);
      row[fmt::format("{}_seconds", to_string(phase))] =
          unknown ? Json(nullptr) : Json(step.times[phase]);
    }
    row["peak_memory_bytes"] = step.peak_memory_bytes;
    row["profiled"] = step.profiled != Profiled::no;
    row["evaluation_loss"] = step.evaluation_loss ? number(*step.evaluation_loss) : Json(nullptr);
    list.push_back(row);
  }
  return list;
}

}  // namespace tinyllama::training

#include "benchmarks/scaling/scaling_row.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "benchmarks/harness/reporter.hpp"

namespace tinyllama::scaling {
namespace {

using Run = benchmark::BenchmarkReporter::Run;
using Values = std::vector<double>;

double mean(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double standard_deviation(const Values& values) {
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double variation(const Values& values) {
  const double middle = mean(values);
  return middle == 0 ? 0 : standard_deviation(values) / middle;
}

Run run_of(const std::string& name, benchmark::TimeUnit unit, size_t repetitions) {
  Run run;
  run.run_name.function_name = name;
  run.threads = 1;
  run.repetitions = static_cast<int64_t>(repetitions);
  run.time_unit = unit;
  return run;
}

bool in_all(const std::vector<Repetition>& repetitions, const std::string& counter) {
  return std::all_of(repetitions.begin(), repetitions.end(),
                     [&](const Repetition& r) { return r.counters.count(counter) > 0; });
}

struct Aggregate {
  const char* name;
  benchmark::StatisticUnit unit;
  std::function<double(const Values&)> of;
};

Run aggregate(const std::string& name, benchmark::TimeUnit unit,
              const std::vector<Repetition>& repetitions, const Aggregate& statistic) {
  const auto over = [&](auto value_of) {
    Values values;
    for (const Repetition& repetition : repetitions) values.push_back(value_of(repetition));
    return statistic.of(values);
  };
  Run run = run_of(name, unit, repetitions.size());
  run.run_type = Run::RT_Aggregate;
  run.aggregate_name = statistic.name;
  run.aggregate_unit = statistic.unit;
  run.iterations = 1;
  run.real_accumulated_time = over([](const Repetition& r) { return r.seconds; });
  run.cpu_accumulated_time = over([](const Repetition& r) { return r.cpu_seconds; });
  for (const auto& [counter, unused] : repetitions.front().counters) {
    if (!in_all(repetitions, counter)) continue;
    run.counters[counter] =
        over([&, &key = counter](const Repetition& r) { return r.counters.at(key); });
  }
  return run;
}

}  // namespace

double median(Values values) {
  if (values.empty()) throw std::invalid_argument("median of no values");
  const size_t half = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

harness::CaseResult to_case_result(const std::string& name, benchmark::TimeUnit unit,
                                   const std::vector<Repetition>& repetitions) {
  harness::CaseResult result;
  harness::CaseReporter reporter(
      [&](harness::CaseResult finished) { result = std::move(finished); });
  std::vector<Run> runs;
  for (size_t index = 0; index < repetitions.size(); ++index) {
    const Repetition& repetition = repetitions[index];
    Run run = run_of(name, unit, repetitions.size());
    run.run_type = Run::RT_Iteration;
    run.repetition_index = static_cast<int64_t>(index);
    run.iterations = repetition.iterations;
    const auto iterations = static_cast<double>(repetition.iterations);
    run.real_accumulated_time = repetition.seconds * iterations;
    run.cpu_accumulated_time = repetition.cpu_seconds * iterations;
    for (const auto& [counter, value] : repetition.counters) run.counters[counter] = value;
    runs.push_back(std::move(run));
  }
  reporter.ReportRuns(runs);
  if (repetitions.size() > 1) {
    const Aggregate statistics[] = {
        {"mean", benchmark::kTime, mean},
        {"median", benchmark::kTime, [](const Values& values) { return median(values); }},
        {"stddev", benchmark::kTime, standard_deviation},
        {"cv", benchmark::kPercentage, variation}};
    std::vector<Run> aggregates;
    for (const Aggregate& statistic : statistics)
      aggregates.push_back(aggregate(name, unit, repetitions, statistic));
    reporter.ReportRuns(aggregates);
  }
  reporter.Finalize();
  return result;
}

}  // namespace tinyllama::scaling

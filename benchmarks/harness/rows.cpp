#include "benchmarks/harness/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "benchmarks/harness/samples.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kNanoseconds = 1e9;

// The keys and their order are those of Google Benchmark's JSON reporter.
Json row(const RowIdentity& identity, const std::string& run_type) {
  return {{"name", identity.run_name},      {"family_index", identity.family_index},
          {"per_family_instance_index", 0}, {"run_name", identity.run_name},
          {"run_type", run_type},           {"repetitions", identity.repetitions}};
}

void add_times(Json& row, const RowIdentity& identity, int64_t iterations, double real,
               double cpu) {
  row["iterations"] = iterations;
  row["real_time"] = real;
  row["cpu_time"] = cpu;
  row["time_unit"] = identity.time_unit;
}

Json stopped_row(const RowIdentity& identity, size_t index, const Outcome& outcome) {
  Json stopped = row(identity, "iteration");
  stopped["repetition_index"] = index;
  stopped["threads"] = 1;
  if (outcome.failure.empty()) {
    stopped["skipped"] = true;
    stopped["skip_message"] = outcome.skip;
  } else {
    stopped["error_occurred"] = true;
    stopped["error_message"] = outcome.failure;
  }
  add_times(stopped, identity, 0, 0, 0);
  return stopped;
}

void add_samples(Json& row, const std::vector<double>& seconds) {
  if (seconds.empty()) return;
  row["median_ns"] = median(seconds) * kNanoseconds;
  if (const auto interval = median_interval(seconds))
    row["median_interval_ns"] = {interval->low * kNanoseconds, interval->high * kNanoseconds};
  Json& samples = row["samples_ns"] = Json::array();
  // Whole nanoseconds: clocks and device events tell no more.
  for (const double sample : thinned(seconds, kMostSamplesInARow))
    samples.push_back(std::llround(sample * kNanoseconds));
}

Json repetition_row(const RowIdentity& identity, size_t index, const Repetition& repetition) {
  const double unit = seconds_of_unit(identity.time_unit);
  Json measured = row(identity, "iteration");
  measured["repetition_index"] = index;
  measured["threads"] = 1;
  add_times(measured, identity, repetition.iterations, repetition.seconds / unit,
            repetition.cpu_seconds / unit);
  add_samples(measured, repetition.samples);
  for (const auto& [name, value] : repetition.counters) measured[name] = value;
  return measured;
}

struct Statistic {
  const char* name;
  bool is_relative;
  double (*of)(const std::vector<double>&);
};

double variation(const std::vector<double>& values) {
  const double middle = mean(values);
  return middle == 0 ? 0 : standard_deviation(values) / middle;
}

double median_of(const std::vector<double>& values) {
  return median(values);
}

constexpr Statistic kStatistics[] = {{"mean", false, mean},
                                     {"median", false, median_of},
                                     {"stddev", false, standard_deviation},
                                     {"cv", true, variation}};

Json aggregate_row(const RowIdentity& identity, const std::vector<Repetition>& repetitions,
                   const Statistic& statistic) {
  const auto over = [&](const std::function<double(const Repetition&)>& value_of) {
    std::vector<double> values;
    for (const Repetition& repetition : repetitions) values.push_back(value_of(repetition));
    return statistic.of(values);
  };
  const double unit = statistic.is_relative ? 1 : seconds_of_unit(identity.time_unit);
  Json aggregate = row(identity, "aggregate");
  aggregate["name"] = fmt::format("{}_{}", identity.run_name, statistic.name);
  aggregate["threads"] = 1;
  aggregate["aggregate_name"] = statistic.name;
  aggregate["aggregate_unit"] = statistic.is_relative ? "percentage" : "time";
  add_times(aggregate, identity, static_cast<int64_t>(repetitions.size()),
            over([](const Repetition& r) { return r.seconds; }) / unit,
            over([](const Repetition& r) { return r.cpu_seconds; }) / unit);
  for (const auto& [name, unused] : repetitions.front().counters) {
    const auto has_it = [&, &counter = name](const Repetition& r) {
      return r.counters.contains(counter);
    };
    if (std::all_of(repetitions.begin(), repetitions.end(), has_it))
      aggregate[name] =
          over([&, &counter = name](const Repetition& r) { return r.counters.at(counter); });
  }
  return aggregate;
}

}  // namespace

double seconds_of_unit(const std::string& time_unit) {
  if (time_unit == "ns") return 1e-9;
  if (time_unit == "us") return 1e-6;
  if (time_unit == "ms") return 1e-3;
  return 1;
}

CaseResult to_rows(const std::string& name, const RowIdentity& identity, const Outcome& outcome) {
  CaseResult result{name};
  const auto& repetitions = outcome.repetitions;
  if (repetitions.empty() || !outcome.failure.empty()) {
    result.entries.push_back(stopped_row(identity, repetitions.size(), outcome));
  } else {
    for (size_t i = 0; i < repetitions.size(); ++i)
      result.entries.push_back(repetition_row(identity, i, repetitions[i]));
    if (repetitions.size() > 1) {
      for (const Statistic& statistic : kStatistics)
        result.entries.push_back(aggregate_row(identity, repetitions, statistic));
    }
  }
  Outcome labelled;
  labelled.label = outcome.label;
  if (outcome.without_time > 0 && outcome.failure.empty())
    labelled.add_to_label(
        fmt::format("time left for {} of {} repetitions", repetitions.size(),
                    static_cast<int64_t>(repetitions.size()) + outcome.without_time));
  if (!labelled.label.empty()) {
    for (Json& entry : result.entries) entry["label"] = labelled.label;
  }
  return result;
}

// A row a line: with their samples the rows would otherwise be hundreds of lines each.
std::string ResultDocument::text() const {
  const auto dump = [](const Json& json, int indent) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace);
  };
  std::string rows;
  for (const auto& result : results) {
    for (const auto& entry : result.entries)
      rows += fmt::format("{}\n    {}", rows.empty() ? "" : ",", dump(entry, -1));
  }
  return fmt::format("{{\n  \"context\": {},\n  \"benchmarks\": [{}\n  ]\n}}\n", dump(context, 2),
                     rows);
}

}  // namespace tinyllama::harness

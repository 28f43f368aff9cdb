#include "benchmarks/harness/rows.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <regex>

#include "core/statistics.hpp"
#include "core/text.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kNanoseconds = 1e9;

double to_double(int64_t count) {
  return static_cast<double>(count);
}

// The axes in the name of a case, of a collective or peak none: <component>/<pass>/<variant>/<size>
// /<dtype>/batch:<B>/seq:<S>, after which a data-parallel step's has more.
Json axes_of(const std::string& name) {
  static const std::regex pattern(
      "([^/]+)/([^/]+)/([^/]+)/([^/]+)/([^/]+)/batch:([0-9]+)/seq:([0-9]+)(/.*)?");
  std::smatch found;
  if (!std::regex_match(name, found, pattern)) return Json::object();
  return {{"component", found.str(1)},      {"pass", found.str(2)},
          {"variant", found.str(3)},        {"size", found.str(4)},
          {"dtype", found.str(5)},          {"batch", std::stoll(found.str(6))},
          {"seq", std::stoll(found.str(7))}};
}

// The keys and their order are those of Google Benchmark's JSON reporter; then what the name says.
Json row(const RowIdentity& identity, const std::string& run_type) {
  Json keys = {{"name", identity.run_name},      {"family_index", identity.family_index},
               {"per_family_instance_index", 0}, {"run_name", identity.run_name},
               {"run_type", run_type},           {"repetitions", identity.repetitions}};
  keys.update(axes_of(identity.run_name));
  return keys;
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
  // as Google Benchmark's own have them: its compare.py ends at a row without
  add_times(stopped, identity, 0, 0, 0);
  return stopped;
}

void add_samples(Json& row, const std::vector<double>& seconds) {
  if (seconds.empty()) return;
  row["mean_ns"] = mean(seconds) * kNanoseconds;
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

// Says where a few long samples move the mean away from the median.
std::string stray_samples(const Repetition& repetition) {
  if (repetition.samples.empty()) return {};
  const double average = mean(repetition.samples);
  if (std::abs(average - repetition.seconds) <= kDisturbed * repetition.seconds) return {};
  const double longest = *std::ranges::max_element(repetition.samples);
  const auto count = to_double(std::ssize(repetition.samples));
  const double of_the_others = (average * count - longest) / std::max(count - 1, 1.0);
  const bool is_one =
      std::abs(of_the_others - repetition.seconds) <= kDisturbed * repetition.seconds;
  return fmt::format("mean {}, median {}: {} {}", format_seconds(average),
                     format_seconds(repetition.seconds),
                     is_one ? "a sample of" : "samples of up to", format_seconds(longest));
}

// Why a case's time is doubtful; empty where it is not.
std::string disturbance(const std::vector<Repetition>& repetitions) {
  std::vector<std::string> reasons;
  const auto farthest = std::ranges::max_element(repetitions, {}, [](const Repetition& one) {
    return one.samples.empty() ? 0 : std::abs(mean(one.samples) / one.seconds - 1);
  });
  reasons.push_back(stray_samples(*farthest));
  std::vector<double> seconds;
  for (const Repetition& one : repetitions) seconds.push_back(one.seconds);
  const auto [shortest, longest] = std::ranges::minmax(seconds);
  if (longest - shortest > kDisturbed * median(seconds))
    reasons.push_back(
        fmt::format("repetitions of {} to {}", format_seconds(shortest), format_seconds(longest)));
  double watched = 0;
  double taken = 0;
  for (const Repetition& one : repetitions) {
    watched += one.watched_seconds;
    taken += one.taken_seconds;
  }
  // the kernel counts in steps of 10 ms
  constexpr double least_seconds = 0.1;
  if (taken > kTaken * watched && taken > least_seconds)
    reasons.push_back(fmt::format("others took {:.2f} processors", taken / watched));
  std::erase(reasons, "");
  return reasons.empty() ? "" : fmt::format("{}{}", kDisturbedLabel, fmt::join(reasons, ", "));
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
  if (statistic.of == median_of && !repetitions.front().samples.empty()) {
    std::vector<double> seconds;
    for (const Repetition& repetition : repetitions) seconds.push_back(repetition.seconds);
    const Interval interval = repetitions_interval(seconds).value();
    aggregate["interval_ns"] = {interval.low * kNanoseconds, interval.high * kNanoseconds};
  }
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

std::string disturbance_of(const Json& entry) {
  const std::string label = entry.value("label", "");
  const size_t found = label.find(kDisturbedLabel);
  if (found == std::string::npos) return {};
  const size_t begin = found + std::string_view(kDisturbedLabel).size();
  return label.substr(begin, label.find(';', begin) - begin);
}

std::string CaseResult::message(const char* flag, const char* key) const {
  if (entries.empty() || !entries.front().contains(flag)) return {};
  return entries.front().value(key, "for no known reason");
}

CaseResult to_rows(const RowIdentity& identity, const Outcome& outcome) {
  CaseResult result{identity.run_name};
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
  Remarks labelled;
  labelled.label = outcome.label;
  if (outcome.without_time > 0 && outcome.failure.empty())
    labelled.add_to_label(
        fmt::format("time left for {} of {} repetitions", repetitions.size(),
                    static_cast<int64_t>(repetitions.size()) + outcome.without_time));
  if (outcome.failure.empty() && !repetitions.empty())
    labelled.add_to_label(disturbance(repetitions));
  if (!labelled.label.empty()) {
    for (Json& entry : result.entries) entry["label"] = labelled.label;
  }
  return result;
}

// A row a line: with their samples the rows would otherwise be hundreds of lines each.
std::string ResultDocument::text(bool aggregates_only) const {
  const auto dump = [](const Json& json, int indent) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace);
  };
  std::string rows;
  for (const auto& result : results) {
    const auto is_aggregate = [](const Json& entry) { return entry.contains("aggregate_name"); };
    const bool leaves_out = aggregates_only && std::ranges::any_of(result.entries, is_aggregate);
    for (const auto& entry : result.entries) {
      if (leaves_out && !is_aggregate(entry)) continue;
      rows += fmt::format("{}\n    {}", rows.empty() ? "" : ",", dump(entry, -1));
    }
  }
  return fmt::format("{{\n  \"context\": {},\n  \"benchmarks\": [{}\n  ]\n}}\n", dump(context, 2),
                     rows);
}

const Json* CaseResult::median() const {
  if (!skip().empty() || !failure().empty()) return nullptr;
  const Json* chosen = nullptr;
  for (const Json& entry : entries) {
    const std::string aggregate = entry.value("aggregate_name", "");
    if (aggregate == "median" || (aggregate.empty() && !chosen)) chosen = &entry;
  }
  return chosen;
}

const Json* CaseResult::best_peak() const {
  const Json* best = nullptr;
  double highest = 0;
  if (!name.starts_with("peak/")) return nullptr;
  for (const Json& entry : entries) {
    const double rate = entry.value("TFLOPS", entry.value("GB_per_second", 0.0));
    if (entry.value("run_type", "") != "iteration" || rate <= highest) continue;
    highest = rate;
    best = &entry;
  }
  return best;
}

std::optional<MeasuredCase> measured_case(const Case& test_case, const CaseResult& result) {
  const Json* entry = result.median();
  if (!entry || !entry->contains("real_time")) return std::nullopt;
  const auto is_repetition = [](const Json& one) { return !one.contains("aggregate_name"); };
  MeasuredCase measured{&test_case};
  measured.seconds =
      entry->at("real_time").get<double>() * seconds_of_unit(entry->value("time_unit", "s"));
  measured.repetitions = std::ranges::count_if(result.entries, is_repetition);
  measured.entry = *entry;
  if (const auto interval = entry->find("interval_ns"); interval != entry->end()) {
    const double nanoseconds = interval->at(1).get<double>() - interval->at(0).get<double>();
    measured.precision = nanoseconds * 1e-9 / 2 / measured.seconds;
  }
  return measured;
}

}  // namespace tinyllama::harness

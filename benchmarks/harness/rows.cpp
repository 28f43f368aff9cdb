#include "benchmarks/harness/rows.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <regex>
#include <sstream>

#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/tables.hpp"
#include "benchmarks/instruments/context.hpp"

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

constexpr double kMiB = 1048576.0;

// Whether the entry was measured, neither skipped nor failed.
bool has_rates(const Json& entry) {
  return entry.contains("samples_per_second");
}

// The highest rate of a single repetition, in iterations a second.
double highest_rate(const Case& test_case, const CaseResult& result) {
  double highest = 0;
  for (const Json& entry : result.entries) {
    if (has_rates(entry) && !entry.contains("aggregate_name"))
      highest = std::max(highest, entry.at("samples_per_second").get<double>());
  }
  return highest / to_double(test_case.workload.batch);
}

// A row's value of something that is proportional to the rate and `of_one_a_second` at one
// iteration per second; its coefficient of variation is the rate's.
double in_proportion(const Case& test_case, double of_one_a_second, const Json& entry) {
  const double samples = entry.at("samples_per_second").get<double>();
  if (entry.value("aggregate_name", "") == "cv") return samples;
  return of_one_a_second * samples / to_double(test_case.workload.batch);
}

// Why a case with this rate of iterations is faster than the peaks allow; empty where it is not.
std::string above_peak(const Case& test_case, const MeasuredPeaks& peaks, double rate) {
  const Cost cost = test_case.cost();
  const std::string type = gemm_type_name(test_case.workload.dtype);
  constexpr const char* wrong = "the time, the count or the peak is wrong";
  if (cost.hardware_flops > 0) {
    const double flops = to_double(cost.hardware_flops) * rate;
    const double share = 100 * flops / peaks.measured_flops(type);
    if (share > 100 * kLargestShare) {
      return fmt::format("{:.4g} TFLOP/s are {:.0f} % of the measured {} peak: {}", flops * 1e-12,
                         share, type, wrong);
    }
    if (flops > peaks.mfu_flops(type) && peaks.mfu_flops(type) != peaks.measured_flops(type)) {
      return fmt::format("{:.4g} TFLOP/s are {:.0f} % of the datasheet's {} peak: {}",
                         flops * 1e-12, 100 * flops / peaks.mfu_flops(type), type, wrong);
    }
  }
  const double roof = shares(test_case, peaks).at("roof_percent") * rate;
  if (roof <= 100 * kLargestShare) return {};
  return fmt::format("{:.4g} s are {:.0f} % of what the measured roofline allows: {}", 1 / rate,
                     roof, wrong);
}

Json describe_weights(const Weights& weights) {
  Json described = {{"parameters", weights.parameter_count()},
                    {"fingerprint", weights.fingerprint()}};
  described.update(dimensions_of(weights.config()));
  if (const auto token = weights.config().padding_token()) described["pad_token_id"] = *token;
  return described;
}

}  // namespace

Json dimensions_of(const ModelConfig& config) {
  const ModelDimensions& d = config.dimensions();
  return {{"vocab_size", d.vocab_size}, {"hidden_dim", d.hidden_dim},
          {"n_layers", d.n_layers},     {"n_heads", d.n_heads},
          {"n_kv_heads", d.n_kv_heads}, {"intermediate_dim", d.intermediate_dim},
          {"norm_eps", d.norm_eps},     {"rope_theta", d.rope_theta}};
}

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

Counters rate_counters(const Case& test_case, double seconds) {
  const Cost cost = test_case.cost();
  Counters counters;
  counters["samples_per_second"] = to_double(test_case.workload.batch) / seconds;
  counters["tokens_per_second"] = to_double(test_case.workload.tokens()) / seconds;
  counters["GB_per_second"] = to_double(cost.bytes) / seconds * 1e-9;
  if (cost.model_flops > 0) counters["TFLOPS"] = to_double(cost.model_flops) / seconds * 1e-12;
  return counters;
}

Counters fixed_counters(const Case& test_case, const Metering& metering) {
  const Cost cost = test_case.cost();
  const int64_t intensity_flops =
      cost.hardware_flops > 0 ? cost.hardware_flops : cost.elementwise_flops;
  Counters counters;
  counters["parameters"] = to_double(cost.parameters);
  counters["model_flops"] = to_double(cost.model_flops);
  counters["causal_flops"] = to_double(cost.causal_flops);
  counters["lookup_flops"] = to_double(cost.lookup_flops);
  counters["opaque_flops"] = to_double(cost.opaque_flops);
  counters["hardware_flops"] = to_double(cost.hardware_flops);
  counters["elementwise_flops"] = to_double(cost.elementwise_flops);
  counters["bytes"] = to_double(cost.bytes);
  counters["flop_per_byte"] = to_double(intensity_flops) / to_double(cost.bytes);
  counters["peak_memory_MiB"] = to_double(metering.peak_bytes) / kMiB;
  counters["predicted_memory_MiB"] = to_double(test_case.memory().peak()) / kMiB;
  if (metering.library_scratch_bytes)
    counters["library_scratch_MiB"] = to_double(*metering.library_scratch_bytes) / kMiB;
  counters["allocations"] = to_double(metering.allocations);
  counters["operators"] = to_double(metering.operators);
  counters["counted_flops"] = to_double(metering.profile.gemm_flops);
  if (metering.profile.kernels) counters["kernels"] = to_double(*metering.profile.kernels);
  return counters;
}

Counters shares(const Case& test_case, const MeasuredPeaks& peaks) {
  const Cost cost = test_case.cost();
  const std::string type = gemm_type_name(test_case.workload.dtype);
  Counters counters;
  double shortest = to_double(cost.bytes) / peaks.bandwidth(cost.bytes);
  if (cost.model_flops > 0) {
    counters["MFU_percent"] = 100 * to_double(cost.model_flops) / peaks.mfu_flops(type);
    counters["MFU_causal_percent"] = 100 * to_double(cost.causal_flops) / peaks.mfu_flops(type);
  }
  if (cost.hardware_flops > 0) {
    const double seconds = to_double(cost.hardware_flops) / peaks.measured_flops(type);
    counters["peak_percent"] = 100 * seconds;
    shortest = std::max(shortest, seconds);
  }
  // The roofline's time is the longer of the two at their peaks: matrix multiplications and
  // traffic.
  counters["roof_percent"] = 100 * shortest;
  return counters;
}

Counters device_counters(const Metering& metering, const Timing& timing) {
  Counters counters;
  if (timing.runs > 1) counters["runs_per_sample"] = to_double(timing.runs);
  if (!metering.profile.device_seconds) return counters;
  const double device = *metering.profile.device_seconds;
  counters["device_ms"] = device * 1e3;
  counters["host_bound"] = waits_for_host(median(timing.seconds), device) ? 1.0 : 0.0;
  return counters;
}

Counters sensor_counters(const Case& test_case, const instruments::SystemSamples& samples,
                         double mean_seconds) {
  Counters counters;
  for (const auto& [name, reading] : samples.readings) {
    if (name == "clock_MHz" || name == "temperature_celsius") counters[name] = reading.mean;
    if (name.starts_with("limited_by_") && reading.maximum > 0) counters[name] = reading.mean;
    if (name != "power_watts") continue;
    counters["power_W"] = reading.mean;
    counters["joules_per_token"] =
        reading.mean * mean_seconds / to_double(test_case.workload.tokens());
  }
  return counters;
}

void add_shares(const Case& test_case, const MeasuredPeaks& peaks, CaseResult& result) {
  const double highest = highest_rate(test_case, result);
  if (!(highest > 0)) return;
  const Counters of_one_a_second = shares(test_case, peaks);
  const std::string reason = above_peak(test_case, peaks, highest);
  for (Json& entry : result.entries) {
    if (!has_rates(entry)) continue;
    entry.erase("above_peak");
    for (const auto& [name, share] : of_one_a_second) {
      entry.erase(name);
      if (reason.empty()) entry[name] = in_proportion(test_case, share, entry);
    }
    if (!reason.empty()) entry["above_peak"] = reason;
  }
}

void add_all_shares(const std::vector<Case>& cases, const MeasuredPeaks& peaks,
                    std::vector<CaseResult>& results) {
  std::map<std::string, const Case*> by_name;
  for (const Case& test_case : cases) by_name.emplace(test_case.name(), &test_case);
  for (CaseResult& result : results) {
    const auto found = by_name.find(result.name);
    if (found != by_name.end()) add_shares(*found->second, peaks, result);
  }
}

// Google Benchmark's own reporter writes it, so that it is its format whatever its version; but for
// the name of the host, which is nobody else's business.
Json benchmark_context() {
  std::ostringstream out;
  benchmark::JSONReporter reporter;
  reporter.SetOutputStream(&out);
  reporter.SetErrorStream(&out);
  reporter.ReportContext(benchmark::BenchmarkReporter::Context());
  reporter.Finalize();
  Json context = Json::parse(out.str()).at("context");
  context["host_name"] = instruments::host_word();
  return context;
}

Json run_context(const Options& options, const instruments::Device& device,
                 const Weights* weights) {
  Json context = benchmark_context();
  context["schema_version"] = kSchemaVersion;
  context.update(instruments::machine_context(device));
  context["seed"] = options.seed;
  context["verify"] = options.verify == Verify::off ? "off" : "before";
  context["cold_cache"] = options.cold_cache;
  // Not where they lie: a path is private, and says nothing elsewhere.
  if (weights != nullptr) context["weights"] = describe_weights(*weights);
  return context;
}

Json goals_of(const Options& options) {
  const TimingOptions& timing = options.timing;
  Json goals = {
      {"benchmark_min_time", timing.iterations ? fmt::format("{}x", *timing.iterations)
                                               : fmt::format("{:g}s", timing.min_seconds)},
      {"benchmark_min_warmup_time", timing.warm_up_seconds},
      {"benchmark_repetitions", timing.repetitions},
      {"precision", "default"},
      {"max-seconds-per-case", options.max_seconds_per_case},
      {"memory-limit", "what is free"},
      {"admit", options.admit == Admit::all ? "all" : "fitting"}};
  if (timing.precision) goals["precision"] = 100 * *timing.precision;
  if (options.memory_limit_bytes) goals["memory-limit"] = *options.memory_limit_bytes;
  return goals;
}

std::vector<std::string> circumstances_to_keep() {
  return {"schema_version", "git_commit", "git_dirty",     "host_name", "device",
          "torch_version",  "threads",    "memory_source", "seed",      "verify",
          "cold_cache",     "weights",    "goals",         "settings"};
}

}  // namespace tinyllama::harness

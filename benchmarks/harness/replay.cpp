#include "benchmarks/harness/replay.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "benchmarks/console/progress.hpp"
#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/memory_check.hpp"
#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/timing.hpp"
#include "benchmarks/instruments/bring_up.hpp"
#include "benchmarks/instruments/context.hpp"
#include "core/statistics.hpp"
#include "core/text.hpp"
#include "core/version.hpp"

namespace tinyllama::harness {
namespace {

using Json = nlohmann::ordered_json;
using instruments::Clock;
using instruments::later;
using instruments::seconds_since;

// The result, a backward's gradients and what its forward saves come beside the inputs.
constexpr int64_t kTimesInputs = 3;

TimingGoal goal_of(const Options& options, instruments::TimePoint start) {
  const TimingOptions& timing = options.timing;
  TimingGoal goal;
  goal.deadline = later(start, options.max_seconds_per_case);
  goal.min_seconds = timing.min_seconds;
  goal.precision = timing.precision.value_or(kDefaultPrecision);
  goal.precision_deadline = later(Clock::now(), kDefaultPrecisionTimes * timing.min_seconds);
  if (timing.iterations) {
    goal.min_seconds = std::numeric_limits<double>::infinity();
    goal.most_iterations = *timing.iterations;
  }
  return goal;
}

double sum_of(const std::vector<ReplayRow>& rows) {
  return std::accumulate(rows.begin(), rows.end(), 0.0, [](double sum, const ReplayRow& row) {
    return sum + row.total_seconds();
  });
}

// What --replay times, and how much of it: the plan, the rows of the cases that the filter keeps.
struct Replayed {
  const RecordedTrace& trace;
  const ReplayPlan& plan;
  std::vector<ReplayRow> rows;
  int64_t filtered = 0;  ///< calls in cases that the filter leaves out
};

// "aten::mul 3, aten::add 2"
std::string calls_text(const std::map<std::string, int64_t>& calls) {
  std::vector<std::pair<int64_t, std::string>> by_number;
  for (const auto& [name, count] : calls) by_number.emplace_back(-count, name);
  std::ranges::sort(by_number);
  std::vector<std::string> parts;
  for (const auto& [count, name] : by_number) parts.push_back(fmt::format("{} {}", name, -count));
  return fmt::format("{}", fmt::join(parts, ", "));
}

int64_t number_of(const std::map<std::string, int64_t>& calls) {
  return std::accumulate(calls.begin(), calls.end(), int64_t{0},
                         [](int64_t sum, const auto& entry) { return sum + entry.second; });
}

std::string table_of(const Replayed& replayed) {
  const bool has_times = replayed.trace.seconds > 0 && !replayed.trace.has_kernels;
  std::vector<std::string> header = {"case", "count", "time", "+-", "GFLOP/s", "total", "share"};
  if (has_times) header.emplace_back("in the trace");
  std::vector<const ReplayRow*> by_time;
  for (const ReplayRow& row : replayed.rows) by_time.push_back(&row);
  std::ranges::stable_sort(by_time, [](const ReplayRow* a, const ReplayRow* b) {
    return a->total_seconds() > b->total_seconds();
  });
  const double sum = sum_of(replayed.rows);
  std::vector<std::vector<std::string>> cells;
  double recorded = 0;
  for (const ReplayRow* row : by_time) {
    const ReplayCase& replay = *row->replay;
    std::vector<std::string> line = {replay.name, fmt::format("{}", replay.count)};
    if (row->failure.empty()) {
      const auto interval = repetitions_interval(row->repetitions);
      const double half = interval ? (interval->high - interval->low) / 2 / row->seconds : 0;
      const double rate = static_cast<double>(replay.flops) / row->seconds * 1e-9;
      line.insert(line.end(), {format_seconds(row->seconds),
                               !interval  ? ""
                               : half > 1 ? ">100%"
                                          : fmt::format("{:.0f}%", 100 * half),
                               replay.flops > 0 ? fmt::format("{:.1f}", rate) : "",
                               format_seconds(row->total_seconds()),
                               fmt::format("{:.1f}%", 100 * row->total_seconds() / sum)});
    } else {
      line.insert(line.end(), {"none: " + row->failure, "", "", "", ""});
    }
    if (has_times) line.push_back(format_seconds(replay.recorded_seconds));
    recorded += replay.recorded_seconds;
    cells.push_back(std::move(line));
  }
  std::string text = format_table(header, cells);
  text += fmt::format("{} distinct operators; count x time of all: {}\n", replayed.rows.size(),
                      format_seconds(sum));
  if (has_times) {
    text += fmt::format("in the trace: {} of {} from its first operator to its last\n",
                        format_seconds(recorded), format_seconds(replayed.trace.seconds));
  }
  if (replayed.filtered > 0)
    text += fmt::format("left out by the filter: {} calls\n", replayed.filtered);
  if (const auto& calls = replayed.plan.not_replayed; !calls.empty())
    text += fmt::format("not replayed: {} calls: {}\n", number_of(calls), calls_text(calls));
  if (const auto& calls = replayed.plan.without_computing; !calls.empty())
    text += fmt::format("without computing (views, allocations): {} calls: {}\n", number_of(calls),
                        calls_text(calls));
  return text;
}

Json document_of(const Replayed& replayed, const Options& options,
                 const instruments::Device& device) {
  constexpr size_t most_samples = 200;
  const double sum = sum_of(replayed.rows);
  Json cases = Json::array();
  for (const ReplayRow& row : replayed.rows) {
    const ReplayCase& replay = *row.replay;
    Json entry = {{"name", replay.name}, {"count", replay.count}, {"flops", replay.flops}};
    if (replayed.trace.seconds > 0) entry["recorded_seconds"] = replay.recorded_seconds;
    if (row.failure.empty()) {
      entry["seconds"] = row.seconds;
      entry["total_seconds"] = row.total_seconds();
      entry["share_percent"] = 100 * row.total_seconds() / sum;
      entry["samples_seconds"] = thinned(row.samples, most_samples);
    } else {
      entry["failure"] = row.failure;
    }
    cases.push_back(std::move(entry));
  }
  Json document = {{"trace", options.replay_file},
                   {"format", replayed.trace.format},
                   {"device", instruments::describe_device(device)},
                   {"git_commit", source_version().commit},
                   {"total_seconds", sum},
                   {"cases", std::move(cases)},
                   {"filtered_calls", replayed.filtered},
                   {"not_replayed", replayed.plan.not_replayed},
                   {"without_computing", replayed.plan.without_computing}};
  if (replayed.trace.seconds > 0) {
    document["trace_seconds"] = replayed.trace.seconds;
    document["trace_has_kernels"] = replayed.trace.has_kernels;
  }
  return document;
}

}  // namespace

ReplayRow time_replay(const ReplayCase& replay, const Options& options,
                      const instruments::Device& device) {
  ReplayRow row{.replay = &replay};
  const MemoryBudget budget = memory_budget(device, options.memory_limit_bytes, 0);
  if (replay.bytes > budget.bytes / kTimesInputs) {
    row.failure =
        fmt::format("inputs of {} and what comes beside them do not fit into {} ({})",
                    format_bytes(replay.bytes), format_bytes(budget.bytes), budget.source);
    return row;
  }
  row.failure = failure_of(device, options.memory_limit_bytes, [&] {
    const std::unique_ptr<WorkItem> item = replay.build(device.torch(), options.seed);
    const auto start = Clock::now();
    const double last =
        warm_up(device, *item, options.timing.warm_up_seconds, options.max_seconds_per_case / 10);
    std::vector<double> medians;
    for (int64_t i = 0; i < options.timing.repetitions; ++i) {
      if (i > 0 && seconds_since(start) + last > options.max_seconds_per_case) break;
      const Timing timing = time_until(device, *item, nullptr, goal_of(options, start));
      medians.push_back(median(timing.seconds));
      row.samples.insert(row.samples.end(), timing.seconds.begin(), timing.seconds.end());
    }
    row.seconds = median(medians);
    row.repetitions = std::move(medians);
  });
  release_memory(device);
  return row;
}

console::ExitCode run_replay(const Options& options, const instruments::Device& device) {
  const NameFilter filter(options);
  const RecordedTrace trace = read_recorded_trace(options.replay_file);
  const auto refuse = [&](const std::string& what) {
    throw std::invalid_argument(fmt::format("{}: {}", options.replay_file, what));
  };
  ReplayPlan plan;
  try {
    plan = plan_replay(trace);
  } catch (const std::invalid_argument& error) {
    refuse(error.what());
  }
  if (plan.cases.empty()) refuse("has neither GEMMs nor attention nor norms with shapes to replay");
  Replayed replayed{trace, plan, {}};
  std::vector<const ReplayCase*> kept;
  for (const ReplayCase& replay : plan.cases) {
    if (filter.keeps(replay.name))
      kept.push_back(&replay);
    else
      replayed.filtered += replay.count;
  }
  if (kept.empty())
    refuse(fmt::format("--benchmark_filter '{}': no case of the trace matches", options.filter));
  if (options.list) {
    for (const ReplayCase* replay : kept) std::cout << replay->name << "\n";
    return console::ExitCode::ok;
  }
  console::install_interrupt_handler();
  instruments::start_computing();
  console::Progress progress("operator");
  progress.expect("operator", 1, std::ssize(kept));
  for (const ReplayCase* replay : kept) {
    if (console::interrupted()) break;
    progress.start(replay->name);
    replayed.rows.push_back(time_replay(*replay, options, device));
    progress.finish("operator");
  }
  progress.clear();
  std::cout << (options.format == "json" ? document_of(replayed, options, device).dump(1) + "\n"
                                         : table_of(replayed));
  if (console::interrupted()) return console::ExitCode::interrupted;
  const auto has_failed = [](const ReplayRow& row) { return !row.failure.empty(); };
  return std::ranges::any_of(replayed.rows, has_failed) ? console::ExitCode::failed
                                                        : console::ExitCode::ok;
}

}  // namespace tinyllama::harness

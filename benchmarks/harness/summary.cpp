#include "benchmarks/harness/summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include "benchmarks/console/text_table.hpp"

namespace tinyllama::harness {
namespace {

struct Axis {
  const char* title;
  std::function<std::string(const Case&)> value;
};

const std::vector<Axis>& axes() {
  static const std::vector<Axis> all = {
      {"size", [](const Case& c) { return c.size; }},
      {"batch", [](const Case& c) { return std::to_string(c.workload.batch); }},
      {"seq", [](const Case& c) { return std::to_string(c.workload.seq); }},
      {"dtype", [](const Case& c) { return std::string(to_string(c.workload.dtype)); }},
      {"variant", [](const Case& c) { return c.workload.variant.name(); }},
      {"pass", [](const Case& c) { return std::string(to_string(c.pass)); }}};
  return all;
}

struct Column {
  const char* title;
  const char* counter;
  const char* format;
};

// Costs that only depend on the shape (FLOPs, bytes) are in the JSON and in --dry-run.
constexpr std::array kColumns = {Column{"samples/s", "samples_per_second", "{:.1f}"},
                                 Column{"tokens/s", "tokens_per_second", "{:.0f}"},
                                 Column{"TFLOPS", "TFLOPS", "{:.4g}"},
                                 Column{"MFU %", "MFU_percent", "{:.1f}"},
                                 Column{"peak %", "peak_percent", "{:.1f}"},
                                 Column{"GB/s", "GB_per_second", "{:.2f}"},
                                 Column{"FLOP/B", "flop_per_byte", "{:.1f}"},
                                 Column{"roof %", "roof_percent", "{:.1f}"},
                                 Column{"peak MiB", "peak_memory_MiB", "{:.1f}"},
                                 Column{"allocs", "allocations", "{:.0f}"},
                                 Column{"ops", "operators", "{:.0f}"},
                                 Column{"kernels", "kernels", "{:.0f}"},
                                 Column{"rel error", "max_rel_error", "{:.1e}"}};

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.3f} s", seconds);
}

double unit_seconds(const std::string& unit) {
  if (unit == "ns") return 1e-9;
  if (unit == "us") return 1e-6;
  if (unit == "ms") return 1e-3;
  return 1;
}

// The part of the heading that all rows share, and the axes in which they differ.
std::string component_table(const std::string& component,
                            const std::vector<const MeasuredCase*>& rows) {
  std::vector<const Axis*> varying;
  std::vector<std::string> shared;
  for (const Axis& axis : axes()) {
    const std::string first = axis.value(*rows.front()->planned);
    const bool varies = std::any_of(rows.begin(), rows.end(), [&](const auto* row) {
      return axis.value(*row->planned) != first;
    });
    if (varies) {
      varying.push_back(&axis);
    } else {
      shared.push_back(std::string(axis.title) + " " + first);
    }
  }
  std::vector<const Column*> columns;
  for (const Column& column : kColumns) {
    if (std::any_of(rows.begin(), rows.end(),
                    [&](const auto* row) { return row->entry.contains(column.counter); })) {
      columns.push_back(&column);
    }
  }
  std::vector<std::string> header;
  for (const Axis* axis : varying) header.emplace_back(axis->title);
  header.insert(header.end(), {"time", "+-"});
  for (const Column* column : columns) header.emplace_back(column->title);
  std::vector<std::vector<std::string>> cells;
  for (const MeasuredCase* row : rows) {
    std::vector<std::string> line;
    for (const Axis* axis : varying) line.push_back(axis->value(*row->planned));
    line.push_back(format_seconds(row->seconds));
    line.push_back(row->spread ? fmt::format("{:.0f}%", 100 * *row->spread) : "-");
    for (const Column* column : columns) {
      const auto value = row->entry.find(column->counter);
      line.push_back(value == row->entry.end()
                         ? "-"
                         : fmt::format(fmt::runtime(column->format), value->get<double>()));
    }
    cells.push_back(std::move(line));
  }
  return fmt::format("{}  ({})\n{}\n", component, fmt::join(shared, ", "),
                     console::format_table(header, cells));
}

std::string peak_lines(const std::vector<CaseResult>& results) {
  std::string text;
  for (const auto& result : results) {
    const auto best = best_peak(result);
    if (!best) continue;
    text += fmt::format("  {:<18} {:>9.4g} {}  {}\n", result.name, best->value, best->unit,
                        result.entries.front().value("label", ""));
  }
  return text.empty() ? "" : "peaks, measured\n" + text + "\n";
}

std::string reason_lines(const std::vector<CaseResult>& results, const char* title,
                         const char* flag, const char* message) {
  std::map<std::string, std::vector<std::string>> names_by_reason;
  for (const auto& result : results) {
    if (result.entries.empty() || !result.entries.front().contains(flag)) continue;
    names_by_reason[result.entries.front().value(message, "")].push_back(result.name);
  }
  std::string text;
  for (const auto& [reason, names] : names_by_reason)
    text += fmt::format("  {}\n      {}\n", fmt::join(names, "\n  "), reason);
  return text.empty() ? "" : std::string(title) + "\n" + text + "\n";
}

}  // namespace

std::optional<MeasuredCase> measured_case(const Case& planned, const CaseResult& result) {
  const Json* chosen = nullptr;
  std::optional<double> spread;
  for (const auto& entry : result.entries) {
    if (!entry.contains("real_time") || entry.contains("error_occurred") ||
        entry.contains("skipped"))
      continue;
    const std::string aggregate = entry.value("aggregate_name", "");
    if (aggregate == "cv") spread = entry.at("real_time").get<double>();
    if (aggregate == "median" || (aggregate.empty() && !chosen)) chosen = &entry;
  }
  if (!chosen) return std::nullopt;
  const double seconds =
      chosen->at("real_time").get<double>() * unit_seconds(chosen->value("time_unit", "s"));
  return MeasuredCase{&planned, seconds, spread, *chosen};
}

std::optional<BestPeak> best_peak(const CaseResult& result) {
  if (!result.name.starts_with("peak/") || result.entries.empty()) return std::nullopt;
  for (const auto& [counter, unit] :
       {std::pair{"TFLOPS", "TFLOP/s"}, std::pair{"GB_per_second", "GB/s"}}) {
    if (!result.entries.front().contains(counter)) continue;
    double best = 0;
    for (const Json& entry : result.entries) {
      if (entry.value("run_type", "") == "iteration")
        best = std::max(best, entry.value(counter, 0.0));
    }
    return BestPeak{best, counter, unit};
  }
  return std::nullopt;
}

std::string summary(const std::vector<Case>& cases, const std::vector<CaseResult>& results,
                    const Closure& closure) {
  std::map<std::string, const CaseResult*> by_name;
  for (const auto& result : results) by_name[result.name] = &result;
  std::vector<MeasuredCase> measured;
  for (const Case& planned : cases) {
    const auto found = by_name.find(planned.name());
    if (found == by_name.end()) continue;
    if (auto row = measured_case(planned, *found->second)) measured.push_back(std::move(*row));
  }
  std::vector<std::string> order;
  std::map<std::string, std::vector<const MeasuredCase*>> rows;
  for (const auto& row : measured) {
    const std::string& component = row.planned->component->name;
    if (rows[component].empty()) order.push_back(component);
    rows[component].push_back(&row);
  }
  std::string text = "\n";
  text += peak_lines(results);
  for (const auto& component : order) text += component_table(component, rows[component]);
  text += reason_lines(results, "skipped", "skipped", "skip_message");
  text += reason_lines(results, "FAILED", "error_occurred", "error_message");
  return text + closure_lines(measured, closure);
}

std::string closure_lines(const std::vector<MeasuredCase>& measured, const Closure& closure) {
  const auto find_workload = [&](const Workload& workload,
                                 const ClosurePart& part) -> const MeasuredCase* {
    for (const auto& row : measured) {
      const Case& c = *row.planned;
      if (c.component->name == part.component && c.pass == part.pass && c.workload == workload)
        return &row;
    }
    return nullptr;
  };
  const auto find = [&](const Case& step, const ClosurePart& part) {
    const MeasuredCase* row = find_workload(step.workload, part);
    if (row) return row;
    // A part that the variant leaves as it is was measured as the baseline.
    Workload baseline = step.workload;
    baseline.variant = Variant();
    row = find_workload(baseline, part);
    return row && !step.workload.variant.has_any(row->planned->component->switches) ? row : nullptr;
  };
  std::string text;
  std::vector<std::string> lacking;
  for (const auto& step : measured) {
    if (step.planned->component->name != closure.whole) continue;
    double sum = 0;
    std::vector<std::string> terms;
    std::vector<std::string> missing;
    for (const ClosurePart& part : closure.parts(step.planned->workload.config)) {
      const MeasuredCase* row = find(*step.planned, part);
      const std::string times = part.count == 1 ? "" : fmt::format("{} x ", part.count);
      if (!row) {
        missing.push_back(part.component);
        continue;
      }
      sum += static_cast<double>(part.count) * row->seconds;
      terms.push_back(fmt::format("{}{} {}", times, part.component, format_seconds(row->seconds)));
    }
    if (!missing.empty()) {
      lacking = missing;
      continue;
    }
    const Case& c = *step.planned;
    text +=
        fmt::format("closure  {} {} {} batch {} seq {}: {} = {} = {:.1f} % of {} {}\n",
                    c.workload.variant.name(), c.size, to_string(c.workload.dtype),
                    c.workload.batch, c.workload.seq, fmt::join(terms, " + "), format_seconds(sum),
                    100 * sum / step.seconds, closure.whole, format_seconds(step.seconds));
  }
  if (text.empty() && !lacking.empty()) {
    text = fmt::format("closure  not computed: {} was measured at no point together with {}\n",
                       closure.whole, fmt::join(lacking, ", "));
  }
  return text;
}

}  // namespace tinyllama::harness

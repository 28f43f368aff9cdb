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
                    const PartsOfStep& step, const MeasureInterleaved& measure) {
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
  return text + sum_of_parts_lines(measured, step, measure);
}

}  // namespace tinyllama::harness

#include "benchmarks/harness/tables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/console/text_table.hpp"

namespace tinyllama::harness {
namespace {

// Above this spread between repetitions a row is marked.
constexpr double kNoisy = 0.10;
constexpr size_t kMostSkippedInDigest = 10;

struct Counter {
  const char* key;
  const char* name;    ///< empty where the unit says it
  const char* unit;    ///< empty where there is none
  const char* format;  ///< null: as a count, "1.23 G"
  bool is_shown = false;

  std::string title() const {
    return *name != '\0' && *unit != '\0' ? fmt::format("{} {}", name, unit)
                                          : std::string(name) + unit;
  }
  std::string text(const Json& entry) const {
    const auto value = entry.find(key);
    if (value == entry.end()) return "-";
    return format ? fmt::format(fmt::runtime(format), value->get<double>())
                  : console::format_count(value->get<double>());
  }
  /// "memory 12.3 MiB"
  std::string phrase(const Json& entry) const {
    return fmt::format("{}{}{}{}{}", name, *name != '\0' ? " " : "", text(entry),
                       *unit != '\0' ? " " : "", unit);
  }
};

// In the order of the columns. Those that are shown leave room for 100 characters.
constexpr Counter kCounters[] = {{"speedup", "speedup", "", "{:.2f}", true},
                                 {"samples_per_second", "", "samples/s", "{:.1f}", true},
                                 {"tokens_per_second", "", "tokens/s", "{:.0f}"},
                                 {"TFLOPS", "", "TFLOP/s", "{:.4g}"},
                                 {"MFU_percent", "MFU", "%", "{:.1f}", true},
                                 {"MFU_causal_percent", "causal MFU", "%", "{:.1f}"},
                                 {"peak_percent", "peak", "%", "{:.1f}", true},
                                 {"roof_percent", "roof", "%", "{:.1f}", true},
                                 {"GB_per_second", "", "GB/s", "{:.2f}"},
                                 {"flop_per_byte", "", "FLOP/B", "{:.1f}"},
                                 {"peak_memory_MiB", "memory", "MiB", "{:.1f}", true},
                                 {"predicted_memory_MiB", "predicted", "MiB", "{:.1f}"},
                                 {"library_scratch_MiB", "library scratch", "MiB", "{:.1f}"},
                                 {"allocations", "allocations", "", "{:.0f}"},
                                 {"operators", "operators", "", "{:.0f}"},
                                 {"kernels", "kernels", "", "{:.0f}"},
                                 {"max_rel_error", "rel error", "", "{:.1e}"},
                                 {"parameters", "parameters", "", nullptr},
                                 {"model_flops", "model", "FLOP", nullptr},
                                 {"causal_flops", "causal", "FLOP", nullptr},
                                 {"hardware_flops", "hardware", "FLOP", nullptr},
                                 {"counted_flops", "counted", "FLOP", nullptr},
                                 {"opaque_flops", "opaque", "FLOP", nullptr},
                                 {"lookup_flops", "lookup", "FLOP", nullptr},
                                 {"elementwise_flops", "elementwise", "FLOP", nullptr},
                                 {"bytes", "traffic", "B", nullptr}};

constexpr const char* kAll = "all";

const Counter& counter_of(std::string_view key) {
  return *std::ranges::find_if(kCounters, [&](const Counter& c) { return c.key == key; });
}

using Rows = std::vector<const MeasuredCase*>;

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

bool is_noisy(const MeasuredCase& row) {
  return row.spread.value_or(0) > kNoisy;
}

// What is shown, and what --columns names beside it.
std::vector<const Counter*> chosen_counters(const std::vector<std::string>& more) {
  const bool all = std::ranges::count(more, kAll) > 0;
  std::vector<const Counter*> chosen;
  for (const Counter& counter : kCounters) {
    if (counter.is_shown || all || std::ranges::count(more, counter.key) > 0)
      chosen.push_back(&counter);
  }
  return chosen;
}

// A table that grows by columns.
class ColumnTable {
 public:
  using Text = std::function<std::string(const MeasuredCase&)>;

  explicit ColumnTable(const Rows& rows) : rows_(rows), cells_(rows.size()) {}

  /// Whether all rows have the same text.
  bool is_shared(const Text& text) const {
    const std::string first = text(*rows_.front());
    return std::ranges::all_of(rows_, [&](const auto* row) { return text(*row) == first; });
  }
  void add(const std::string& title, const Text& text) {
    header_.push_back(title);
    for (size_t i = 0; i < rows_.size(); ++i) cells_[i].push_back(text(*rows_[i]));
  }
  std::string text() const { return console::format_table(header_, cells_); }

 private:
  const Rows& rows_;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> cells_;
};

// What all rows share is said once: axes in the heading, anything else beneath.
std::string component_table(const Rows& rows, const std::vector<const Counter*>& counters) {
  ColumnTable table(rows);
  const MeasuredCase& first = *rows.front();
  std::vector<std::string> heading;
  std::vector<std::string> beneath;
  for (const Axis& axis : axes()) {
    const auto text = [&](const MeasuredCase& row) { return axis.value(*row.test_case); };
    if (table.is_shared(text)) {
      heading.push_back(fmt::format("{} {}", axis.title, text(first)));
    } else {
      table.add(axis.title, text);
    }
  }
  table.add("time", [](const auto& row) { return format_seconds(row.seconds); });
  table.add("+-", [](const auto& row) {
    return row.spread ? fmt::format("{}{:.0f}%", is_noisy(row) ? "!" : "", 100 * *row.spread) : "-";
  });
  // A column, or a text beneath where several rows have the same value.
  const auto add = [&](const std::string& title, const ColumnTable::Text& text,
                       const std::string& shared) {
    if (rows.size() > 1 && table.is_shared(text)) {
      beneath.push_back(shared);
    } else {
      table.add(title, text);
    }
  };
  const int64_t repetitions = first.repetitions;
  add(
      "reps", [](const auto& row) { return std::to_string(row.repetitions); },
      fmt::format("{} repetition{}", repetitions, repetitions == 1 ? "" : "s"));
  const bool only_baseline = std::ranges::all_of(
      rows, [](const auto* row) { return row->test_case->workload.variant.is_baseline(); });
  for (const Counter* counter : counters) {
    const auto text = [&](const MeasuredCase& row) { return counter->text(row.entry); };
    const bool says_nothing = std::string_view(counter->key) == "speedup" && only_baseline;
    if (says_nothing || (text(first) == "-" && table.is_shared(text))) continue;
    add(counter->title(), text, counter->phrase(first.entry));
  }
  return fmt::format(
      "{}  ({})\n{}{}\n", first.test_case->component->name, fmt::join(heading, ", "), table.text(),
      beneath.empty() ? "" : fmt::format("in all rows: {}\n", fmt::join(beneath, ", ")));
}

std::string component_tables(const Rows& rows, const std::vector<std::string>& columns) {
  std::vector<std::pair<std::string, Rows>> components;
  for (const MeasuredCase* row : rows) {
    const std::string& name = row->test_case->component->name;
    auto found = std::ranges::find(components, name, &std::pair<std::string, Rows>::first);
    if (found == components.end()) found = components.insert(found, {name, {}});
    found->second.push_back(row);
  }
  std::string text;
  for (const auto& [name, of_component] : components)
    text += component_table(of_component, chosen_counters(columns));
  return text;
}

// Components of one size and dtype with their variants side by side.
std::string side_by_side(const std::string& heading, const Rows& rows) {
  using Line = std::pair<std::string, std::string>;  // component and pass
  std::vector<std::string> variants;
  std::vector<Line> lines;
  std::map<std::pair<Line, std::string>, const MeasuredCase*> cells;
  for (const MeasuredCase* row : rows) {
    const Case& c = *row->test_case;
    const Line line = {c.component->name, std::string(to_string(c.pass))};
    const std::string variant = c.workload.variant.name();
    if (std::ranges::count(variants, variant) == 0) variants.push_back(variant);
    if (std::ranges::count(lines, line) == 0) lines.push_back(line);
    cells[{line, variant}] = row;
  }
  std::vector<std::string> header = {"component", "pass"};
  std::vector<std::vector<std::string>> table;
  for (const auto& [component, pass] : lines) table.push_back({component, pass});
  const auto add = [&](const std::string& title, const std::string& variant,
                       const ColumnTable::Text& text) {
    header.push_back(title);
    for (size_t i = 0; i < lines.size(); ++i) {
      const auto cell = cells.find({lines[i], variant});
      table[i].push_back(cell == cells.end() ? "-" : text(*cell->second));
    }
  };
  for (const std::string& variant : variants) {
    add(variant, variant, [](const MeasuredCase& row) {
      return fmt::format("{}{}", is_noisy(row) ? "!" : "", format_seconds(row.seconds));
    });
  }
  for (const char* key : {"speedup", "roof_percent"}) {
    for (const std::string& variant : variants) {
      if (std::string_view(key) == "speedup" && variant == "baseline") continue;
      const Counter& counter = counter_of(key);
      const std::string of = variant == "baseline" || variants.size() > 2 ? variant + " " : "";
      add(of + counter.title(), variant,
          [&](const MeasuredCase& row) { return counter.text(row.entry); });
    }
  }
  return heading + "\n" + console::format_table(header, table) + "\n";
}

// The default grid has hundreds of rows: of them the full step, and at each size's own batch and
// sequence, where the grid begins, every other component.
std::string digest(const std::vector<Case>& cases, const Rows& rows, const std::string& whole) {
  std::map<std::string, const Workload*> own;
  for (const Case& one : cases) own.emplace(one.size, &one.workload);
  Rows steps;
  std::map<std::pair<std::string, Dtype>, Rows> others;
  for (const MeasuredCase* row : rows) {
    const Case& c = *row->test_case;
    const Workload& first = *own.at(c.size);
    if (c.workload.batch != first.batch || c.workload.seq != first.seq) continue;
    (c.component->name == whole ? steps : others[{c.size, c.workload.dtype}]).push_back(row);
  }
  std::string text = component_tables(steps, {});
  for (const auto& [point, of_point] : others) {
    const Workload& own_of_size = *own.at(point.first);
    text +=
        side_by_side(fmt::format("components  (size {}, batch {}, seq {}, dtype {})", point.first,
                                 own_of_size.batch, own_of_size.seq, to_string(point.second)),
                     of_point);
  }
  return text;
}

struct BestPeak {
  double value;
  const char* counter;  // "TFLOPS" or "GB_per_second"
};

// A row peak/...: its best repetition. Nothing for a row that is no peak, was skipped or failed.
std::optional<BestPeak> best_peak(const CaseResult& result) {
  if (!result.name.starts_with("peak/") || result.entries.empty()) return std::nullopt;
  for (const char* counter : {"TFLOPS", "GB_per_second"}) {
    if (!result.entries.front().contains(counter)) continue;
    double best = 0;
    for (const Json& entry : result.entries) {
      if (entry.value("run_type", "") == "iteration")
        best = std::max(best, entry.value(counter, 0.0));
    }
    return BestPeak{best, counter};
  }
  return std::nullopt;
}

std::string peak_rows(const std::vector<CaseResult>& results) {
  std::string text;
  for (const auto& result : results) {
    const auto best = best_peak(result);
    if (!best) continue;
    text += fmt::format("  {:<18} {:>9.4g} {}  {}\n", result.name, best->value,
                        counter_of(best->counter).unit, result.entries.front().value("label", ""));
  }
  return text.empty() ? "" : "peaks, measured\n" + text + "\n";
}

// What the percentages are of, from the result's context.
std::string measured_peaks_line(const Json& context) {
  if (!context.contains("peaks")) return "";
  std::vector<std::string> peaks;
  for (const auto& [name, peak] : context.at("peaks").at("measured").items()) {
    const bool is_bandwidth = peak.contains("bytes_per_second");
    const double rate = peak.at(is_bandwidth ? "bytes_per_second" : "flops_per_second");
    std::string what = name;
    std::ranges::replace(what, '_', ' ');
    peaks.push_back(
        fmt::format("{} {}{}/s", what, console::format_count(rate), is_bandwidth ? "B" : "FLOP"));
  }
  return peaks.empty() ? "" : fmt::format("measured peaks: {}\n\n", fmt::join(peaks, ", "));
}

// A line each, at most so many.
std::string reason_lines(const std::vector<CaseResult>& results, const char* title,
                         const char* flag, const char* message, size_t most) {
  std::vector<std::string> lines;
  for (const auto& result : results) {
    if (result.entries.empty() || !result.entries.front().contains(flag)) continue;
    lines.push_back(
        fmt::format("  {}: {}\n", result.name, result.entries.front().value(message, "")));
  }
  if (lines.empty()) return "";
  const size_t left_out = lines.size() - std::min(lines.size(), most);
  lines.resize(lines.size() - left_out);
  if (left_out > 0) lines.push_back(fmt::format("  and {} more\n", left_out));
  return fmt::format("{}\n{}\n", title, fmt::join(lines, ""));
}

// Where the rest of a digest is.
std::string files_lines(const Options& options, size_t rows) {
  std::vector<std::string> files;
  std::vector<std::string> ways;
  if (!options.out_file.empty()) {
    files.push_back(options.out_file);
    ways.push_back("as a page: scripts/report " + options.out_file);
  }
  if (!options.journal_file.empty()) {
    files.push_back(options.journal_file);
    ways.push_back(
        fmt::format("as tables: --resume --journal {} --columns all", options.journal_file));
  }
  if (files.empty())
    ways.emplace_back("--columns all shows them as tables, --benchmark_out=FILE keeps them");
  return (files.empty() ? "" : fmt::format("written: {}\n", fmt::join(files, ", "))) +
         fmt::format("all {} measured cases\n  {}\n", rows, fmt::join(ways, "\n  "));
}

}  // namespace

std::vector<std::string> column_names() {
  std::vector<std::string> names = {kAll};
  for (const Counter& counter : kCounters) names.emplace_back(counter.key);
  return names;
}

double seconds_of(const Json& entry) {
  const std::string unit = entry.value("time_unit", "s");
  const double scale = unit == "ns" ? 1e-9 : unit == "us" ? 1e-6 : unit == "ms" ? 1e-3 : 1;
  return entry.at("real_time").get<double>() * scale;
}

std::optional<MeasuredCase> measured_case(const Case& test_case, const CaseResult& result) {
  const Json* chosen = nullptr;
  std::optional<double> spread;
  int64_t repetitions = 0;
  for (const auto& entry : result.entries) {
    if (!entry.contains("real_time") || entry.contains("error_occurred") ||
        entry.contains("skipped"))
      continue;
    const std::string aggregate = entry.value("aggregate_name", "");
    repetitions += aggregate.empty() ? 1 : 0;
    if (aggregate == "cv") spread = entry.at("real_time").get<double>();
    if (aggregate == "median" || (aggregate.empty() && !chosen)) chosen = &entry;
  }
  if (!chosen) return std::nullopt;
  return MeasuredCase{&test_case, seconds_of(*chosen), spread, repetitions, *chosen};
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.3f} s", seconds);
}

std::string result_tables(const Options& options, const std::vector<Case>& cases,
                          const ResultDocument& document, const PartsOfStep& step,
                          const MeasureInterleaved& measure) {
  const auto& results = document.results;
  std::map<std::string, const CaseResult*> by_name;
  for (const auto& result : results) by_name[result.name] = &result;
  std::vector<MeasuredCase> measured;
  for (const Case& one : cases) {
    const auto found = by_name.find(one.name());
    if (found == by_name.end()) continue;
    if (auto row = measured_case(one, *found->second)) measured.push_back(std::move(*row));
  }
  Rows rows;
  for (const MeasuredCase& row : measured) rows.push_back(&row);
  const bool is_digest =
      !options.axes.any() && options.filter == Options().filter && options.columns.empty();

  std::string text = "\n";
  if (!is_digest) text += peak_rows(results);
  text += is_digest ? digest(cases, rows, step.whole) : component_tables(rows, options.columns);
  if (std::ranges::any_of(measured, is_noisy)) {
    text += fmt::format("! repetitions differ by more than {:.0f} % (+-, standard deviation)\n\n",
                        100 * kNoisy);
  }
  const std::string sums = sum_of_parts_lines(measured, step, measure);
  text += sums.empty() ? "" : sums + "\n";
  text += rows.empty() ? "" : measured_peaks_line(document.context);
  text += reason_lines(results, "skipped", "skipped", "skip_message",
                       is_digest ? kMostSkippedInDigest : results.size());
  text += reason_lines(results, "FAILED", "error_occurred", "error_message", results.size());
  return is_digest ? text + files_lines(options, rows.size()) : text;
}

std::string figures_of_merit(const std::vector<Case>& cases, const std::vector<CaseResult>& results,
                             bool interrupted, size_t planned) {
  // Their names do not change: others read them.
  constexpr std::pair<const char*, const char*> figures[] = {
      {"samples_per_second", "samples_per_second"},
      {"tokens_per_second", "tokens_per_second"},
      {"TFLOPS", "TFLOPS"},
      {"MFU_percent", "MFU_percent"},
      {"peak_percent", "peak_percent"},
      {"roof_percent", "roof_percent"},
      {"peak_memory_MiB", "peak_memory"}};
  std::map<std::string, const Case*> by_name;
  for (const Case& one : cases) by_name.emplace(one.name(), &one);
  std::string text;
  size_t measured = 0;
  size_t failed = 0;
  size_t skipped = 0;
  for (const CaseResult& result : results) {
    if (result.entries.empty()) continue;
    failed += result.entries.front().contains("error_occurred") ? 1 : 0;
    skipped += result.entries.front().contains("skipped") ? 1 : 0;
    const auto add = [&](const std::string& figure, double value, const char* unit) {
      text += fmt::format("FOM {}/{} = {:.6g} {}\n", result.name, figure, value, unit);
    };
    const auto found = by_name.find(result.name);
    if (const auto best = best_peak(result)) {
      ++measured;
      add(best->counter, best->value, counter_of(best->counter).unit);
    } else if (found != by_name.end()) {
      const auto row = measured_case(*found->second, result);
      if (!row) continue;
      ++measured;
      add("time", row->seconds, "s");
      for (const auto& [counter, figure] : figures) {
        const auto value = row->entry.find(counter);
        if (value != row->entry.end()) add(figure, value->get<double>(), counter_of(counter).unit);
      }
    }
  }
  const size_t done = measured + failed + skipped;
  if (interrupted) return text + fmt::format("INTERRUPTED: {} of {} cases done\n", done, planned);
  if (failed > 0) return text + fmt::format("FAILED: {} of {} cases failed\n", failed, done);
  if (measured == 0) return text + fmt::format("NOTHING MEASURED: {} cases skipped\n", skipped);
  const std::string beside = skipped > 0 ? fmt::format(", {} skipped", skipped) : "";
  return text + fmt::format("SUCCESS: {} cases measured{}\n", measured, beside);
}

}  // namespace tinyllama::harness

#include "benchmarks/harness/tables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "benchmarks/console/text_table.hpp"
#include "benchmarks/harness/counters.hpp"
#include "core/text.hpp"

namespace tinyllama::harness {
namespace {

constexpr size_t kMostReasonsInDigest = 10;

// "3.83 (3.7-3.9)" with its interval, "~1.02 (0.9-1.1)" where that holds 1, "3.83" where there is
// none.
std::string speedup_text(const Json& entry) {
  const double speedup = entry.at("speedup");
  if (!entry.contains("speedup_low")) return fmt::format("{:.2f}", speedup);
  const double low = entry.at("speedup_low");
  const double high = entry.at("speedup_high");
  const bool is_shown = low > 1 || high < 1;
  return fmt::format("{}{:.2f} ({:.3g}-{:.3g})", is_shown ? "" : "~", speedup, low, high);
}

// "-" where the row has none.
std::string cell(const Counter& counter, const MeasuredCase& row) {
  const auto value = row.entry.find(counter.key);
  if (value == row.entry.end()) return "-";
  return counter.key == "speedup" ? speedup_text(row.entry) : counter.text(value->get<double>());
}

using Rows = std::vector<const MeasuredCase*>;

struct Column {
  std::string title;
  std::function<std::string(const MeasuredCase&)> text;
  /// How one value of all rows is said, with {} for it; empty for what is always a column.
  std::string shared{};
  bool is_axis = false;  ///< said in the heading, also of a single row
};

// Why the row is marked; empty where it is not.
std::string disturbance_of(const Json& entry) {
  const std::string label = entry.value("label", "");
  const size_t found = label.find(kDisturbedLabel);
  if (found == std::string::npos) return {};
  const size_t begin = found + std::string_view(kDisturbedLabel).size();
  return label.substr(begin, label.find(';', begin) - begin);
}

const char* mark_of(const MeasuredCase& row) {
  return disturbance_of(row.entry).empty() ? "" : "!";
}

template <typename Value>
Column axis(const char* title, Value value) {
  return {title, [=](const auto& row) { return fmt::format("{}", value(*row.test_case)); },
          fmt::format("{} {{}}", title), true};
}

std::vector<Column> axes() {
  return {axis("size", [](const Case& c) { return c.size; }),
          axis("batch", [](const Case& c) { return c.workload.batch; }),
          axis("seq", [](const Case& c) { return c.workload.seq; }),
          axis("dtype", [](const Case& c) { return to_string(c.workload.dtype); }),
          axis("variant", [](const Case& c) { return c.workload.variant.name(); }),
          axis("pass", [](const Case& c) { return to_string(c.pass); })};
}

Column column_of(const Counter& counter) {
  return {counter.heading(), [&counter](const auto& row) { return cell(counter, row); },
          counter.heading("{}")};
}

// What an ideal implementation would wait for: as the roofline has it, the larger of the least
// times for its FLOPs and for its bytes.
std::string bound(const MeasuredCase& row) {
  const double roof = row.entry.value("roof_percent", 0.0);
  if (roof == 0) return "-";
  // equal ones may differ in their last digit
  return row.entry.value("peak_percent", 0.0) < 0.99999 * roof ? "bandwidth" : "compute";
}

// A figure that varies is a column. One that all rows share is said once: an axis in the heading,
// another one beneath the table. Beneath stand also columns that equal an earlier one in each row.
std::string table(const std::string& name, const Rows& rows, const std::vector<Column>& columns) {
  std::vector<std::string> heading;
  std::vector<std::string> beneath;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> cells(rows.size());
  std::map<std::vector<std::string>, std::string> figures;
  for (const Column& column : columns) {
    std::vector<std::string> texts;
    for (const MeasuredCase* row : rows) texts.push_back(column.text(*row));
    const bool is_shared = std::ranges::count(texts, texts.front()) == std::ssize(texts);
    const std::string said = fmt::format(fmt::runtime(column.shared), texts.front());
    // Nothing has it, or these are rows of the baseline alone.
    if (is_shared && (texts.front() == "-" || said == "speedup 1.00")) continue;
    if (is_shared && column.is_axis) {
      heading.push_back(said);
    } else if (is_shared && rows.size() > 1 && !said.empty()) {
      beneath.push_back(said);
    } else if (const auto same = figures.find(texts); same != figures.end() && !is_shared) {
      beneath.push_back(fmt::format("{} = {}", column.title, same->second));
    } else {
      if (!column.is_axis && !column.shared.empty()) figures.emplace(texts, column.title);
      header.push_back(column.title);
      for (size_t i = 0; i < rows.size(); ++i) cells[i].push_back(texts[i]);
    }
  }
  std::string text = fmt::format("{}  ({})\n", name, fmt::join(heading, ", "));
  text += console::format_table(header, cells);
  if (!beneath.empty()) text += fmt::format("in all rows: {}\n", fmt::join(beneath, ", "));
  return text;
}

// Which switches the names of sets stand for in these rows, of those that the component contains;
// with the types where they differ.
std::string sets_lines(const Rows& rows) {
  std::map<std::pair<std::string, std::string>, std::set<std::string>> types;
  std::set<std::string> all_types;
  for (const MeasuredCase* row : rows) {
    const Case& one = *row->test_case;
    const Variant& variant = one.workload.variant;
    if (variant.name() == variant.switch_names()) continue;
    std::vector<Switch> contained;
    for (const Switch option : variant.switches())
      if (Variant({option}).changes(one.component->parts)) contained.push_back(option);
    const std::string type(to_string(one.workload.dtype));
    types[{variant.name(), Variant(contained).switch_names()}].insert(type);
    all_types.insert(type);
  }
  std::string text;
  for (const auto& [set, of_types] : types)
    text += fmt::format(
        "{}{} = {}\n", set.first,
        of_types == all_types ? "" : fmt::format(" in {}", fmt::join(of_types, ", ")), set.second);
  return text;
}

// `more`: counters beside those that are shown anyway.
std::string component_tables(const Rows& rows, const std::vector<std::string>& more) {
  std::vector<Column> columns = axes();
  columns.push_back({"time", [](const auto& row) { return format_seconds(row.seconds); }});
  columns.push_back({"+-", [](const auto& row) {
                       const std::string mark = mark_of(row);
                       if (row.precision)
                         return fmt::format("{}{:.0f}%", mark, 100 * *row.precision);
                       return mark.empty() ? "-" : mark;
                     }});
  columns.push_back(
      {"reps", [](const auto& row) { return std::to_string(row.repetitions); }, "repetitions {}"});
  const auto is_asked_for = [&](std::string_view key) { return std::ranges::count(more, key) > 0; };
  for (const Counter& counter : counters()) {
    if (counter.is_shown || is_asked_for(kAllColumns) || is_asked_for(counter.key))
      columns.push_back(column_of(counter));
    if (counter.key == "roof_percent") columns.push_back({"bound", bound, "bound {}"});
  }
  std::vector<std::string> order;
  std::map<std::string, Rows> of_component;
  for (const MeasuredCase* row : rows) {
    Rows& found = of_component[row->test_case->component->name];
    if (found.empty()) order.push_back(row->test_case->component->name);
    found.push_back(row);
  }
  std::string text;
  for (const std::string& name : order) {
    const Rows& found = of_component[name];
    text += table(name, found, columns) + sets_lines(found) + "\n";
  }
  return text;
}

// The fastest of one point, marked only where it is faster than every other beyond the intervals of
// their speedups.
std::string winner_of(const Rows& point) {
  const auto low = [](const MeasuredCase& row) {
    const bool is_baseline = row.test_case->workload.variant.is_baseline();
    return is_baseline ? 1.0 : row.entry.value("speedup_low", 0.0);
  };
  const auto high = [](const MeasuredCase& row) {
    const bool is_baseline = row.test_case->workload.variant.is_baseline();
    return is_baseline ? 1.0 : row.entry.value("speedup_high", HUGE_VAL);
  };
  const auto best =
      *std::ranges::max_element(point, {}, [&](const auto* row) { return low(*row); });
  const bool wins = std::ranges::all_of(
      point, [&](const auto* row) { return row == best || high(*row) < low(*best); });
  return wins && point.size() > 1 ? best->test_case->workload.variant.name() : "";
}

// A line for each component, pass and point, with its variants side by side.
std::string side_by_side(const Rows& rows) {
  std::vector<std::string> variants;
  std::vector<std::string> order;
  std::map<std::string, Rows> points;
  for (const MeasuredCase* row : rows) {
    const std::string variant = row->test_case->workload.variant.name();
    if (std::ranges::count(variants, variant) == 0) variants.push_back(variant);
    Case point = *row->test_case;
    point.workload.variant = Variant();
    Rows& found = points[point.name()];
    if (found.empty()) order.push_back(point.name());
    found.push_back(row);
  }
  std::map<const MeasuredCase*, const Rows*> point_of;
  std::map<const MeasuredCase*, std::string> winners;
  Rows lines;
  for (const std::string& name : order) {
    lines.push_back(points[name].front());
    point_of[lines.back()] = &points[name];
    winners[lines.back()] = winner_of(points[name]);
  }
  std::vector<Column> columns = {
      {"component", [](const auto& row) { return row.test_case->component->name; }}};
  for (const Column& axis : axes()) {
    if (axis.title != "variant") columns.push_back(axis);
  }
  const auto add = [&](const std::string& title, const std::string& variant, const auto& text) {
    columns.push_back({title, [&, variant, text](const MeasuredCase& line) -> std::string {
                         for (const MeasuredCase* row : *point_of.at(&line)) {
                           if (row->test_case->workload.variant.name() == variant)
                             return text(line, *row);
                         }
                         return "-";
                       }});
  };
  for (const std::string& variant : variants) {
    add(variant, variant, [&](const MeasuredCase& line, const MeasuredCase& row) {
      return fmt::format("{}{}{}",
                         winners.at(&line) == row.test_case->workload.variant.name() ? "*" : "",
                         mark_of(row), format_seconds(row.seconds));
    });
  }
  constexpr size_t most_with_roof = 2;
  for (const char* key : {"speedup", "roof_percent"}) {
    const Counter& shown = counter(key);
    const bool is_speedup = shown.key == "speedup";
    if (!is_speedup && variants.size() > most_with_roof) continue;
    for (const std::string& variant : variants) {
      if (variant == "baseline" && is_speedup) continue;
      add(variant == variants.back() && variants.size() <= most_with_roof
              ? shown.heading()
              : variant + " " + shown.heading(),
          variant, [&shown](const MeasuredCase& /*line*/, const MeasuredCase& row) {
            return cell(shown, row);
          });
    }
  }
  columns.push_back({"bound", bound, "bound {}"});
  return table("variants", lines, columns) + "\n";
}

// Where rows of chosen axes differ in more than the variant; the table of a single point says it.
std::string variants_table(const Rows& rows) {
  std::set<std::string> variants;
  std::set<std::string> points;
  for (const MeasuredCase* row : rows) {
    Case point = *row->test_case;
    variants.insert(point.workload.variant.name());
    point.workload.variant = Variant();
    points.insert(point.name());
  }
  return variants.size() > 1 && points.size() > 1 ? side_by_side(rows) : "";
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
  for (const auto& [point, of_point] : others) text += side_by_side(of_point);
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
                        counter(best->counter).unit, result.entries.front().value("label", ""));
  }
  return text.empty() ? "" : "peaks, measured\n" + text + "\n";
}

// What the percentages are of, from the result's context.
std::string measured_peaks_line(const Json& context) {
  if (!context.contains("peaks")) return "";
  std::vector<std::string> peaks;
  const Json& measured = context.at("peaks").at("measured");
  for (const auto& [name, peak] : measured.items()) {
    if (!peak.contains("flops_per_second")) continue;
    const double rate = peak.at("flops_per_second");
    peaks.push_back(fmt::format("{} {}FLOP/s", name, format_count(rate)));
  }
  if (const std::string text = bandwidth_text(measured); !text.empty())
    peaks.push_back("bandwidth " + text);
  return peaks.empty() ? "" : fmt::format("measured peaks: {}\n\n", fmt::join(peaks, ", "));
}

// At most so many of the lines.
std::string section(const std::string& title, std::vector<std::string> lines, size_t most) {
  if (lines.empty()) return "";
  const size_t left_out = lines.size() - std::min(lines.size(), most);
  lines.resize(lines.size() - left_out);
  if (left_out > 0) lines.push_back(fmt::format("  and {} more\n", left_out));
  return fmt::format("{}\n{}\n", title, fmt::join(lines, ""));
}

std::string reason_lines(const std::vector<CaseResult>& results, const char* title,
                         const char* flag, const char* message, size_t most) {
  std::vector<std::string> lines;
  for (const auto& result : results) {
    if (result.entries.empty() || !result.entries.front().contains(flag)) continue;
    lines.push_back(
        fmt::format("  {}: {}\n", result.name, result.entries.front().value(message, "")));
  }
  return section(title, std::move(lines), most);
}

std::string disturbed_lines(const Rows& rows, size_t most) {
  std::vector<std::string> lines;
  for (const MeasuredCase* row : rows) {
    const std::string reason = disturbance_of(row->entry);
    if (!reason.empty()) lines.push_back(fmt::format("  {}: {}\n", row->test_case->name(), reason));
  }
  const std::string title = fmt::format(
      "! disturbed: repetitions, or mean and median of one, differ by more than {:.0f} %, or "
      "others "
      "took processors",
      100 * kDisturbed);
  return section(title, std::move(lines), most);
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

// In the order of the cases.
std::vector<MeasuredCase> measured_cases(const std::vector<Case>& cases,
                                         const std::vector<CaseResult>& results) {
  std::map<std::string, const CaseResult*> by_name;
  for (const auto& result : results) by_name[result.name] = &result;
  std::vector<MeasuredCase> measured;
  for (const Case& one : cases) {
    const auto found = by_name.find(one.name());
    if (found == by_name.end()) continue;
    if (auto row = measured_case(one, *found->second)) measured.push_back(std::move(*row));
  }
  return measured;
}

}  // namespace

std::string bandwidth_text(const Json& measured_peaks) {
  constexpr size_t step = 4;
  const Json curve = measured_peaks.value("bandwidth_curve", Json::array());
  std::vector<std::string> texts;
  for (size_t left = curve.size(); left > 0; left -= std::min(left, step)) {
    const Json& point = curve.at(left - 1);
    texts.push_back(fmt::format("{}B/s at {}", format_count(point.at("bytes_per_second")),
                                format_bytes(point.at("bytes"))));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string result_tables(const Options& options, const std::vector<Case>& cases,
                          const ResultDocument& document, const PartsOfStep& step,
                          const MeasureInterleaved& measure) {
  const auto& results = document.results;
  const std::vector<MeasuredCase> measured = measured_cases(cases, results);
  Rows rows;
  for (const MeasuredCase& row : measured) rows.push_back(&row);
  const bool is_digest =
      !options.axes.any() && options.filter == Options().filter && options.columns.empty();

  std::string text = "\n";
  text += is_digest
              ? digest(cases, rows, step.whole)
              : peak_rows(results) + variants_table(rows) + component_tables(rows, options.columns);
  if (text.find("  +-") != std::string::npos)
    text += "+-: half the 95 % interval of the time, by the medians of its repetitions\n\n";
  if (text.find("bound") != std::string::npos)
    text += "bound: what an ideal implementation would wait for, by FLOPs and least traffic\n\n";
  const auto has_speedup = [](const MeasuredCase& row) {
    return row.entry.contains("speedup_low");
  };
  if (std::ranges::any_of(measured, has_speedup))
    text +=
        "speedup: of variant and baseline timed in turns, with its 95 % interval; ~: no "
        "difference\nshown; neither: too slow for six turns; *: the fastest beyond these "
        "intervals\n\n";
  const std::string sums = sum_of_parts_lines(measured, step, measure);
  text += sums.empty() ? "" : sums + "\n";
  text += rows.empty() ? "" : measured_peaks_line(document.context);
  text += disturbed_lines(rows, is_digest ? kMostReasonsInDigest : rows.size());
  text += reason_lines(results, "skipped", "skipped", "skip_message",
                       is_digest ? kMostReasonsInDigest : results.size());
  text += reason_lines(results, "FAILED", "error_occurred", "error_message", results.size());
  return is_digest ? text + files_lines(options, rows.size()) : text;
}

std::string figures_of_merit(const std::vector<Case>& cases, const std::vector<CaseResult>& results,
                             bool interrupted, size_t all) {
  std::string text;
  const auto add = [&](const std::string& name, std::string figure, double value,
                       const std::string& unit) {
    if (figure.ends_with("_MiB")) figure.resize(figure.size() - 4);
    text += fmt::format("FOM {}/{} = {:.6g} {}\n", name, figure, value, unit);
  };
  size_t measured = 0;
  size_t failed = 0;
  size_t skipped = 0;
  for (const CaseResult& result : results) {
    if (result.entries.empty()) continue;
    failed += result.entries.front().contains("error_occurred") ? 1 : 0;
    skipped += result.entries.front().contains("skipped") ? 1 : 0;
    if (const auto best = best_peak(result)) {
      ++measured;
      add(result.name, best->counter, best->value, counter(best->counter).unit);
    }
  }
  for (const MeasuredCase& row : measured_cases(cases, results)) {
    ++measured;
    const std::string name = row.test_case->name();
    add(name, "time", row.seconds, "s");
    for (const Counter& figure : counters()) {
      if (figure.is_figure && row.entry.contains(figure.key))
        add(name, figure.key, row.entry.at(figure.key).get<double>(), figure.unit);
    }
  }
  const size_t done = measured + failed + skipped;
  if (interrupted) return text + fmt::format("INTERRUPTED: {} of {} cases done\n", done, all);
  if (failed > 0) return text + fmt::format("FAILED: {} of {} cases failed\n", failed, done);
  if (measured == 0) return text + fmt::format("NOTHING MEASURED: {} cases skipped\n", skipped);
  const std::string beside = skipped > 0 ? fmt::format(", {} skipped", skipped) : "";
  return text + fmt::format("SUCCESS: {} cases measured{}\n", measured, beside);
}

}  // namespace tinyllama::harness

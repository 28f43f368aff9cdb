#include "benchmarks/harness/tables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "benchmarks/harness/counters.hpp"
#include "core/data_folder.hpp"
#include "core/text.hpp"

namespace tinyllama::harness {
namespace {

constexpr size_t kMostReasonsInDigest = 10;

using Rows = std::vector<const MeasuredCase*>;

bool is_measured(const MeasuredCase* row) {
  return row->why_not.empty();
}

Rows measured_of(const Rows& rows) {
  Rows measured;
  std::ranges::copy_if(rows, std::back_inserter(measured), is_measured);
  return measured;
}

struct Column {
  std::string title;
  std::function<std::string(const MeasuredCase&)> text;
  /// How a value that all rows share is written, with {} for it; empty for what is always a column.
  std::string shared{};
  bool is_axis = false;  ///< said in the heading, also of a single row
};

const char* mark_of(const MeasuredCase& row) {
  return disturbance_of(row.entry).empty() ? "" : "!";
}

struct Axis {
  const char* title;
  std::string (*text)(const Case&);
};

// Rows are sorted by these, and the columns stand in this order: what is to be compared, the
// variants of one point, is on lines that follow each other.
constexpr Axis kAxes[] = {
    {"pass", [](const Case& c) { return std::string(to_string(c.pass)); }},
    {"size", [](const Case& c) { return c.size; }},
    {"batch", [](const Case& c) { return std::to_string(c.workload.batch); }},
    {"seq", [](const Case& c) { return std::to_string(c.workload.seq); }},
    {"dtype", [](const Case& c) { return std::string(to_string(c.workload.dtype)); }},
    {"variant", [](const Case& c) { return c.workload.variant.name(); }}};

std::vector<Column> axis_columns() {
  std::vector<Column> columns;
  for (const Axis& axis : kAxes) {
    columns.push_back({axis.title,
                       [text = axis.text](const MeasuredCase& row) { return text(*row.test_case); },
                       fmt::format("{} {{}}", axis.title), true});
  }
  return columns;
}

// By component, then by the axes. Components and values of an axis keep the order in which the plan
// first has them.
std::vector<const Case*> in_reading_order(const std::vector<Case>& cases) {
  std::map<std::string, size_t> places[1 + std::size(kAxes)];
  std::vector<std::pair<std::vector<size_t>, const Case*>> keyed;
  for (const Case& one : cases) {
    std::vector<std::string> texts = {one.component->name};
    for (const Axis& axis : kAxes) texts.push_back(axis.text(one));
    std::vector<size_t> key;
    for (size_t i = 0; i < texts.size(); ++i)
      key.push_back(places[i].try_emplace(texts[i], places[i].size()).first->second);
    keyed.emplace_back(std::move(key), &one);
  }
  std::ranges::stable_sort(keyed, {}, &decltype(keyed)::value_type::first);
  std::vector<const Case*> sorted;
  for (const auto& [key, one] : keyed) sorted.push_back(one);
  return sorted;
}

Column column_of(const Counter& counter) {
  return {counter.heading(),
          [&counter](const auto& row) { return counter_text(counter, row.entry); },
          counter.heading("{}")};
}

// Which of two times is the longer, hardware FLOPs over their peak or least bytes over bandwidth:
// the roofline's time, which roof_percent is of.
std::string bound(const MeasuredCase& row) {
  const double roof = row.entry.value("roof_percent", 0.0);
  if (roof == 0) return "-";
  // equal ones may differ in their last digit
  return row.entry.value("peak_percent", 0.0) < 0.99999 * roof ? "bandwidth" : "compute";
}

// A figure that varies is a column. One that all rows share is written once: an axis in the
// heading, others beneath the table. There is also said which column equals an earlier one in every
// row.
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
  text += format_table(header, cells);
  if (!beneath.empty()) text += fmt::format("in all rows: {}\n", fmt::join(beneath, ", "));
  return text;
}

// A line for each named set of switches (`optimized`, `fused`) in these rows: the switches of it
// that the component contains, with the types where these have different ones.
std::string sets_lines(const Rows& rows) {
  std::map<std::pair<std::string, std::string>, std::set<std::string>> types;
  std::set<std::string> all_types;
  for (const MeasuredCase* row : rows) {
    const Case& one = *row->test_case;
    const Variant& variant = one.workload.variant;
    if (variant.name() == variant.switch_names()) continue;
    const Parts parts = one.component->parts_in(one.workload.config);
    std::vector<Switch> contained;
    for (const Switch option : variant.switches())
      if (Variant({option}).changes(parts)) contained.push_back(option);
    Variant kept(contained);
    for (const SlotOperator& op : variant.operators())
      if (Variant().with(op).changes(parts)) kept = kept.with(op);
    const std::string type(to_string(one.workload.dtype));
    types[{variant.name(), kept.switch_names()}].insert(type);
    all_types.insert(type);
  }
  std::string text;
  for (const auto& [set, of_types] : types)
    text += fmt::format(
        "{}{} = {}\n", set.first,
        of_types == all_types ? "" : fmt::format(" in {}", fmt::join(of_types, ", ")), set.second);
  return text;
}

// Why a component's table is shorter than the plan; empty where it is not.
std::string unmeasured_line(const Rows& rows) {
  std::map<std::string, int> counts;
  for (const MeasuredCase* row : rows)
    if (!is_measured(row)) ++counts[row->why_not];
  std::vector<std::string> texts;
  for (const auto& [why, count] : counts) texts.push_back(fmt::format("{} {}", count, why));
  return texts.empty() ? "" : fmt::format("no row: {} (reasons below)\n", fmt::join(texts, ", "));
}

// `more`: names of counters to show beside the usual ones.
std::string component_tables(const Rows& rows, const std::vector<std::string>& more) {
  std::vector<Column> columns = axis_columns();
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
    const Rows& all = of_component[name];
    const Rows found = measured_of(all);
    if (found.empty()) continue;
    text += table(name, found, columns) + sets_lines(found) + unmeasured_line(all) + "\n";
  }
  return text;
}

// The fastest variant of a point, where the interval of its speedup lies above those of all others;
// else null.
const MeasuredCase* winner_of(const Rows& point) {
  const auto end = [](const char* key, double unknown) {
    return [=](const MeasuredCase* row) {
      const bool is_baseline = row->test_case->workload.variant.is_baseline();
      return is_baseline ? 1 : row->entry.value(key, unknown);
    };
  };
  const auto low = end("speedup_low", 0.0);
  const auto high = end("speedup_high", HUGE_VAL);
  const Rows rows = measured_of(point);
  const auto* const best = *std::ranges::max_element(rows, {}, low);
  const bool wins = std::ranges::all_of(
      rows, [&](const auto* row) { return row == best || high(row) < low(best); });
  return wins && rows.size() > 1 ? best : nullptr;
}

// Rows of the same component, pass and point, which differ in the variant.
struct Points {
  std::vector<std::string> variants;
  Rows lines;                        // a measured row of each point
  std::map<std::string, Rows> rows;  // of a point

  const Rows& all(const MeasuredCase& line) const { return rows.at(line.test_case->point()); }
  const MeasuredCase* row(const MeasuredCase& line, const std::string& variant) const {
    const auto row = std::ranges::find_if(all(line), [&](const MeasuredCase* one) {
      return one->test_case->workload.variant.name() == variant;
    });
    return row == all(line).end() ? nullptr : *row;
  }
  std::string time(const MeasuredCase& line, const std::string& variant) const {
    const MeasuredCase* const found = row(line, variant);
    if (!found) return "-";
    if (!is_measured(found)) return found->why_not;
    return fmt::format("{}{}{}", winner_of(all(line)) == found ? "*" : "", mark_of(*found),
                       format_seconds(found->seconds));
  }
};

Points points_of(const Rows& rows) {
  Points points;
  for (const MeasuredCase* row : rows) {
    Rows& point = points.rows[row->test_case->point()];
    if (is_measured(row) && std::ranges::none_of(point, is_measured)) points.lines.push_back(row);
    point.push_back(row);
  }
  for (const MeasuredCase* line : points.lines) {
    for (const MeasuredCase* row : points.all(*line)) {
      const std::string variant = row->test_case->workload.variant.name();
      if (std::ranges::count(points.variants, variant) == 0) points.variants.push_back(variant);
    }
  }
  return points;
}

// bound() of the rows of a point: one word where it is the same for all.
std::string bound_of_all(const Rows& rows) {
  std::vector<std::string> found;
  for (const MeasuredCase* row : rows) {
    const std::string text = bound(*row);
    if (text != "-" && std::ranges::count(found, text) == 0) found.push_back(text);
  }
  return found.empty() ? "-" : fmt::format("{}", fmt::join(found, "/"));
}

// A line for each component, pass and point, with its variants side by side.
std::string side_by_side(const Rows& rows) {
  const Points points = points_of(rows);
  if (points.lines.empty()) return "";
  std::vector<Column> columns = {
      {"component", [](const auto& row) { return row.test_case->component->name; }}};
  for (const Column& axis : axis_columns()) {
    if (axis.title != "variant") columns.push_back(axis);
  }
  for (const std::string& variant : points.variants) {
    columns.push_back(
        {variant, [&, variant](const auto& line) { return points.time(line, variant); }});
  }
  const auto add = [&](const std::string& title, const std::string& variant, const char* key) {
    columns.push_back({title, [&, variant, key](const auto& line) -> std::string {
                         const MeasuredCase* row = points.row(line, variant);
                         return row ? counter_text(counter(key), row->entry) : "-";
                       }});
  };
  constexpr size_t most_with_roof = 2;
  const bool is_a_pair = points.variants.size() == 2;
  for (const std::string& variant : points.variants) {
    if (variant != "baseline")
      add(is_a_pair ? "speedup" : variant + " speedup", variant, "speedup");
  }
  if (points.variants.size() <= most_with_roof) {
    for (const std::string& variant : points.variants)
      add(variant + " " + counter("roof_percent").heading(), variant, "roof_percent");
  }
  columns.push_back(
      {"bound", [&](const auto& line) { return bound_of_all(points.all(line)); }, "bound {}"});
  return table("variants", points.lines, columns) + "\n";
}

// Where rows of chosen axes differ in more than the variant; the table of a single point says it.
std::string variants_table(const Rows& rows) {
  std::set<std::string> variants;
  std::set<std::string> points;
  for (const MeasuredCase* row : measured_of(rows)) {
    variants.insert(row->test_case->workload.variant.name());
    points.insert(row->test_case->point());
  }
  return variants.size() > 1 && points.size() > 1 ? side_by_side(rows) : "";
}

// The default grid has hundreds of rows: of them the full step, and at each size's own batch and
// sequence, where the grid begins, every other component.
std::string digest(const std::vector<Case>& cases, const Rows& rows, const std::string& whole) {
  std::map<std::string, const Workload*> own;
  for (const Case& one : cases) own.emplace(one.size, &one.workload);
  const auto is_elsewhere = [&](const Case& c) {
    const Workload& first = *own.at(c.size);
    return c.workload.batch != first.batch || c.workload.seq != first.seq;
  };
  Rows steps;
  std::map<std::pair<std::string, Dtype>, Rows> others;
  for (const MeasuredCase* row : rows) {
    const Case& c = *row->test_case;
    if (is_elsewhere(c)) continue;
    (c.component->name == whole ? steps : others[{c.size, c.workload.dtype}]).push_back(row);
  }
  std::string text = component_tables(steps, {});
  for (const auto& [point, of_point] : others) text += side_by_side(of_point);
  return text;
}

// "TFLOPS" or "GB_per_second", which the row of a peak has.
const Counter& rate_of(const Json& peak) {
  return counter(peak.contains("TFLOPS") ? "TFLOPS" : "GB_per_second");
}

std::string peak_rows(const std::vector<CaseResult>& results) {
  std::string text;
  for (const auto& result : results) {
    const Json* best = result.best_peak();
    if (!best) continue;
    const Counter& rate = rate_of(*best);
    text += fmt::format("  {:<18} {:>9.4g} {}  {}\n", result.name, best->at(rate.key).get<double>(),
                        rate.unit, best->value("label", ""));
  }
  return text.empty() ? "" : "peaks, measured\n" + text + "\n";
}

// A titled list, of at most `most` lines.
std::string section(const std::string& title, std::vector<std::string> lines, size_t most) {
  if (lines.empty()) return "";
  const size_t left_out = lines.size() - std::min(lines.size(), most);
  lines.resize(lines.size() - left_out);
  if (left_out > 0) lines.push_back(fmt::format("  and {} more\n", left_out));
  return fmt::format("{}\n{}\n", title, fmt::join(lines, ""));
}

std::string reason_lines(const std::vector<CaseResult>& results, const char* title,
                         std::string (CaseResult::*reason_of)() const, size_t most) {
  std::vector<std::string> lines;
  for (const auto& result : results) {
    const std::string reason = (result.*reason_of)();
    if (!reason.empty()) lines.push_back(fmt::format("  {}: {}\n", result.name, reason));
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

// Where to find the rows that a digest leaves out.
std::string files_lines(const Options& options, size_t rows) {
  std::vector<std::string> files;
  std::vector<std::string> ways;
  if (!options.out_file.empty()) {
    files.push_back(options.out_file);
    ways.push_back("as a page: " + typed("report") + " " + options.out_file);
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

// Every case that has a result.
std::vector<MeasuredCase> rows_of(const std::vector<Case>& cases,
                                  const std::vector<CaseResult>& results) {
  std::vector<MeasuredCase> rows;
  for (const Case* one : in_reading_order(cases)) {
    const auto own = std::ranges::find(results, one->name(), &CaseResult::name);
    if (own == results.end() || own->entries.empty()) continue;
    const auto measured = measured_case(*one, *own);
    rows.push_back(measured.value_or(MeasuredCase{one}));
    if (!measured) rows.back().why_not = own->failure().empty() ? "skipped" : "FAILED";
  }
  return rows;
}

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

}  // namespace

std::string counter_text(const Counter& counter, const Json& row) {
  const auto value = row.find(counter.key);
  if (value == row.end()) return "-";
  return counter.key == "speedup" ? speedup_text(row) : counter.text(value->get<double>());
}

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

std::string peaks_text(const Json& context) {
  if (!context.contains("peaks")) return {};
  std::vector<std::string> peaks;
  const Json& measured = context.at("peaks").at("measured");
  for (const auto& [name, peak] : measured.items()) {
    if (!peak.contains("flops_per_second")) continue;
    const double rate = peak.at("flops_per_second");
    peaks.push_back(fmt::format("{} {}FLOP/s", name, format_count(rate)));
  }
  if (const std::string text = bandwidth_text(measured); !text.empty())
    peaks.push_back("bandwidth " + text);
  return fmt::format("{}", fmt::join(peaks, ", "));
}

std::string result_tables(const Options& options, const std::vector<Case>& cases,
                          const ResultDocument& document, const PartsOfStep& step,
                          const MeasureInterleaved& measure) {
  const auto& results = document.results;
  const std::vector<MeasuredCase> all = rows_of(cases, results);
  Rows rows;
  for (const MeasuredCase& row : all) rows.push_back(&row);
  const Rows measured = measured_of(rows);
  const bool is_digest =
      !options.axes.any() && options.filter == Options().filter && options.columns.empty();

  std::string text = "\n";
  text += is_digest
              ? digest(cases, rows, step.whole)
              : peak_rows(results) + variants_table(rows) + component_tables(rows, options.columns);
  if (text.find("  +-") != std::string::npos)
    text += "+-: half the 95 % interval of the time, by the medians of its repetitions\n\n";
  if (text.find("bound") != std::string::npos)
    text +=
        "bound: which takes longer at its measured peak, the FLOPs (compute) or the least traffic\n"
        "(bandwidth)\n\n";
  const auto has_speedup = [](const MeasuredCase* row) {
    return row->entry.contains("speedup_low");
  };
  if (std::ranges::any_of(measured, has_speedup))
    text +=
        "speedup: time of the baseline over that of the variant, timed interleaved, with its 95 %\n"
        "interval; ~: no difference shown; no interval: too slow for six rounds; *: faster than "
        "all\n"
        "others beyond their intervals\n\n";
  const std::string sums = sum_of_parts_lines(measured, step, measure);
  text += sums.empty() ? "" : sums + "\n";
  if (const std::string peaks = peaks_text(document.context); !measured.empty() && !peaks.empty())
    text += fmt::format("measured peaks: {}\n\n", peaks);
  const size_t most = is_digest ? kMostReasonsInDigest : results.size();
  text += disturbed_lines(measured, most);
  text += reason_lines(results, "skipped", &CaseResult::skip, most);
  text += reason_lines(results, "FAILED", &CaseResult::failure, results.size());
  return is_digest ? text + files_lines(options, measured.size()) : text;
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
    failed += result.failure().empty() ? 0 : 1;
    skipped += result.skip().empty() ? 0 : 1;
    if (const Json* best = result.best_peak()) {
      ++measured;
      const Counter& rate = rate_of(*best);
      add(result.name, rate.key, best->at(rate.key).get<double>(), rate.unit);
    }
  }
  for (const MeasuredCase& row : rows_of(cases, results)) {
    if (!is_measured(&row)) continue;
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

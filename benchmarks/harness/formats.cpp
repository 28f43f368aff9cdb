#include "benchmarks/harness/formats.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "benchmarks/harness/counters.hpp"
#include "benchmarks/harness/tables.hpp"
#include "core/text.hpp"

namespace tinyllama::harness {
namespace {

// Google Benchmark's numbers, and axes; every other number of an entry is a counter.
const std::set<std::string_view> kNoCounters = {"family_index", "per_family_instance_index",
                                                "repetitions",  "repetition_index",
                                                "threads",      "iterations",
                                                "real_time",    "cpu_time",
                                                "mean_ns",      "batch",
                                                "seq"};

// The value at "row.batch", "context.device.name" or "dimensions.n_layers"; null where there is
// none.
Json value_at(const std::string& from, const Json& row, const Json& context) {
  const size_t dot = from.find('.');
  const std::string root = from.substr(0, dot);
  std::string path = from.substr(dot);
  std::ranges::replace(path, '.', '/');
  const Json::json_pointer place =
      root == "dimensions"
          ? Json::json_pointer("/sizes") / row.value("size", "") / Json::json_pointer(path)
          : Json::json_pointer(path);
  const Json& whole = root == "row" ? row : context;
  return whole.contains(place) ? whole.at(place) : Json();
}

// Without what says nothing: an empty text, a number that JSON has not.
void set(Json& row, const std::string& column, const Json& value) {
  const bool is_empty = value.is_null() || value == "";
  if (is_empty || (value.is_number_float() && !std::isfinite(value.get<double>()))) return;
  row[column] = value;
}

void set_times(Json& row, const CaseResult& result, const Json& entry) {
  const double to_ms = seconds_of_unit(entry.value("time_unit", "s")) / 1e-3;
  const double time = entry.at("real_time").get<double>() * to_ms;
  set(row, "time_ms", time);
  if (entry.contains("cpu_time"))
    set(row, "cpu_time_ms", entry.at("cpu_time").get<double>() * to_ms);
  if (const auto ends = entry.find("interval_ns"); ends != entry.end()) {
    set(row, "time_low_ms", ends->at(0).get<double>() * 1e-6);
    set(row, "time_high_ms", ends->at(1).get<double>() * 1e-6);
  }
  std::vector<double> times;
  for (const Json& one : result.entries) {
    if (!one.contains("aggregate_name")) times.push_back(one.at("real_time").get<double>() * to_ms);
  }
  set(row, "repetitions", std::ssize(times));
  if (times.size() < 2 || result.best_peak()) return;
  const auto [shortest, longest] = std::ranges::minmax(times);
  set(row, "time_range_percent", 100 * (longest - shortest) / time);
}

std::vector<Json> flat_rows(const ResultDocument& document, const std::string& file) {
  std::vector<Json> rows;
  for (const CaseResult& result : document.results)
    rows.push_back(flat_row(document.context, result, file));
  return rows;
}

// Those of every run, then counters that no table knows.
std::vector<std::string> columns_of(const std::vector<Json>& rows) {
  std::vector<std::string> columns;
  for (const FlatColumn& column : flat_columns()) columns.push_back(column.name);
  std::set<std::string> known(columns.begin(), columns.end());
  for (const Json& row : rows) {
    for (const auto& [name, value] : row.items())
      if (known.insert(name).second) columns.push_back(name);
  }
  return columns;
}

std::string dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string csv_field(const Json& value) {
  if (value.is_null()) return {};
  if (!value.is_string()) return dumped(value);
  auto text = value.get<std::string>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  for (size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2)
    text.insert(at, "\"");
  return fmt::format("\"{}\"", text);
}

// ---- Markdown

// In one line and without markup: reasons are texts of libraries, names those of users.
std::string plain(const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += (line.empty() ? "" : " ") + word;
  for (const auto& [sign, written] : {std::pair{'|', "\\|"}, {'<', "&lt;"}}) {
    for (size_t at = 0; (at = line.find(sign, at)) != std::string::npos; at += 2)
      line.replace(at, 1, written);
  }
  return line;
}

std::string text_at(const Json& row, const std::string& column) {
  const auto found = row.find(column);
  if (found == row.end()) return "-";
  return found->is_string() ? found->get<std::string>() : dumped(*found);
}

bool is_measured(const Json& row) {
  return row.at("status") == "measured";
}

struct Column {
  std::string title;
  std::function<std::string(const Json&)> text;
  bool is_axis = false;
  bool may_be_shared = true;  ///< is no column where all rows have the same
};

Column axis(const std::string& name) {
  return {name, [name](const Json& row) { return text_at(row, name); }, true};
}

Column column_of(const Counter& counter) {
  return {counter.heading(), [&counter](const Json& row) { return counter_text(counter, row); }};
}

std::string time_text(const Json& row) {
  if (!is_measured(row)) return row.at("status") == "failed" ? "FAILED" : "skipped";
  return format_seconds(row.at("time_ms").get<double>() * 1e-3);
}

std::string half_interval(const Json& row) {
  const std::string mark = row.contains("disturbed") ? "!" : "";
  if (!row.contains("time_low_ms")) return mark.empty() ? "-" : mark;
  const double width = row.at("time_high_ms").get<double>() - row.at("time_low_ms").get<double>();
  return fmt::format("{}{:.0f}%", mark, 50 * width / row.at("time_ms").get<double>());
}

std::string line_of(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

// The table, and below it what all measured rows share.
std::string table(const std::vector<Json>& rows, const std::vector<Column>& columns) {
  if (rows.empty()) return {};
  std::vector<std::string> header;
  std::vector<std::string> shared;
  std::vector<std::vector<std::string>> lines(rows.size());
  const auto measured = std::ranges::count_if(rows, is_measured);
  for (const Column& column : columns) {
    std::vector<std::string> texts;
    std::set<std::string> different;
    for (const Json& row : rows) {
      texts.push_back(plain(column.text(row)));
      // a case without figures shares those of all others
      if (column.is_axis || is_measured(row)) different.insert(texts.back());
    }
    const std::string said = fmt::format("{} {}", column.title, fmt::join(different, ""));
    // nothing has it, or these are rows of the baseline alone
    const bool says_nothing =
        different.empty() || different.contains("-") || said == "speedup 1.00";
    if (column.may_be_shared && different.size() < 2 && says_nothing) continue;
    if (column.may_be_shared && different.size() == 1 && (column.is_axis || measured > 1)) {
      shared.push_back(said);
      continue;
    }
    header.push_back(column.title);
    for (size_t i = 0; i < rows.size(); ++i) lines[i].push_back(texts[i]);
  }
  std::string text = line_of(header) + line_of(std::vector<std::string>(header.size(), "---"));
  for (const auto& line : lines) text += line_of(line);
  return text + (shared.empty() ? "" : fmt::format("\nAll rows: {}.\n", fmt::join(shared, ", "))) +
         "\n";
}

std::string reasons(const std::vector<Json>& rows, const std::string& title,
                    const std::function<std::string(const Json&)>& reason_of) {
  std::string text;
  for (const Json& row : rows) {
    const std::string reason = reason_of(row);
    if (!reason.empty())
      text += fmt::format("- {}: {}\n", plain(text_at(row, "case")), plain(reason));
  }
  return text.empty() ? "" : fmt::format("{}:\n\n{}\n", title, text);
}

// Commit, libtorch, device and threads.
std::string build_line(const Json& context) {
  const auto at = [&](const char* from) {
    const Json value = value_at(from, Json::object(), context);
    return value.is_string() ? value.get<std::string>() : dumped(value);
  };
  return fmt::format("Build: commit {}{}, libtorch {}, {} ({}, {}), {} threads, {}.\n\n",
                     at("context.git_commit").substr(0, 8),
                     at("context.git_dirty") == "true" ? " with changes" : "",
                     at("context.torch_version"), plain(at("context.device.name")),
                     at("context.device.architecture"), at("context.device.backend"),
                     at("context.threads"), at("context.date").substr(0, 10));
}

}  // namespace

Json flat_row(const Json& context, const CaseResult& result, const std::string& file) {
  const Json* measured = result.best_peak();
  if (measured == nullptr) measured = result.median();
  // the only entry of a case without a time has its name and axes
  const Json& entry = measured != nullptr ? *measured : result.entries.front();
  Json row = Json::object();
  for (const FlatColumn& column : flat_columns())
    if (!column.from.empty()) set(row, column.name, value_at(column.from, entry, context));
  set(row, "case", result.name);
  set(row, "file", file);
  row["status"] = !result.failure().empty() ? "failed"
                  : measured == nullptr     ? "skipped"
                                            : "measured";
  if (measured == nullptr) {
    set(row, "reason", result.failure().empty() ? result.skip() : result.failure());
    return row;
  }
  set_times(row, result, entry);
  set(row, "disturbed", disturbance_of(entry));
  for (const auto& [name, value] : entry.items())
    if (value.is_number() && !kNoCounters.contains(name)) set(row, name, value.get<double>());
  return row;
}

std::string csv_text(const ResultDocument& document, const std::string& file) {
  const std::vector<Json> rows = flat_rows(document, file);
  const std::vector<std::string> columns = columns_of(rows);
  std::string text = fmt::format("{}\n", fmt::join(columns, ","));
  for (const Json& row : rows) {
    std::vector<std::string> fields;
    for (const std::string& column : columns)
      fields.push_back(csv_field(row.value(column, Json())));
    text += fmt::format("{}\n", fmt::join(fields, ","));
  }
  return text;
}

std::string jsonl_text(const ResultDocument& document, const std::string& file) {
  const std::vector<Json> rows = flat_rows(document, file);
  const std::vector<std::string> columns = columns_of(rows);
  std::string text;
  for (const Json& row : rows) {
    Json whole = Json::object();
    for (const std::string& column : columns) whole[column] = row.value(column, Json());
    text += dumped(whole) + "\n";
  }
  return text;
}

std::string markdown_text(const ResultDocument& document, const std::vector<std::string>& more) {
  const std::vector<Json> rows = flat_rows(document, "");
  std::vector<Json> cases;
  std::vector<Json> peaks;
  for (const Json& row : rows) (row.contains("component") ? cases : peaks).push_back(row);
  const Column time = {"time", time_text, false, false};
  const auto is_asked_for = [&](std::string_view key) { return std::ranges::count(more, key) > 0; };

  std::vector<Column> columns;
  for (const char* name : {"component", "pass", "size", "batch", "seq", "dtype", "variant"})
    columns.push_back(axis(name));
  columns.push_back(time);
  columns.push_back({"+-", half_interval});
  columns.push_back({"repetitions", [](const Json& row) { return text_at(row, "repetitions"); }});
  for (const Counter& counter : counters())
    if (counter.is_shown || is_asked_for(kAllColumns) || is_asked_for(counter.key))
      columns.push_back(column_of(counter));
  std::string text = rows.empty() ? "No case was measured.\n\n" : table(cases, columns);
  text +=
      table(peaks, {{"peak", [](const Json& row) { return text_at(row, "case"); }, false, false},
                    column_of(counter("TFLOPS")),
                    column_of(counter("GB_per_second")),
                    {"how", [](const Json& row) { return text_at(row, "label"); }}});
  text += build_line(document.context);
  const std::string measured_peaks = peaks_text(document.context);
  if (std::ranges::any_of(cases, is_measured) && !measured_peaks.empty())
    text += fmt::format("Measured peaks: {}.\n\n", measured_peaks);
  const auto of_status = [](const char* status) {
    return [status](const Json& row) {
      return row.at("status") == status ? text_at(row, "reason") : std::string();
    };
  };
  text += reasons(rows, "! disturbed", [](const Json& row) { return row.value("disturbed", ""); });
  text += reasons(rows, "Skipped", of_status("skipped"));
  text += reasons(rows, "FAILED", of_status("failed"));
  text.pop_back();
  return text;
}

std::string formatted(const Options& options, const ResultDocument& document) {
  if (options.format == "csv") return csv_text(document, options.out_file);
  if (options.format == "jsonl") return jsonl_text(document, options.out_file);
  if (options.format == "md") return markdown_text(document, options.columns);
  return document.text(options.writes_aggregates_only || options.shows_aggregates_only);
}

}  // namespace tinyllama::harness

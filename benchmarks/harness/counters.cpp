#include "benchmarks/harness/counters.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/text.hpp"

namespace tinyllama::harness {
namespace {

constexpr const char* kSchema =
#include "results_schema.inc"
    ;

nlohmann::ordered_json read_definitions() {
  return nlohmann::ordered_json::parse(kSchema).at("$defs");
}

std::vector<Counter> read_counters() {
  std::vector<Counter> all;
  const auto definitions = read_definitions();
  for (const auto& [key, rule] : definitions.at("measured").at("properties").items()) {
    const auto found = rule.find("x-counter");
    // The ends of an interval are in its own column.
    if (found == rule.end() || !(found->contains("title") || found->contains("unit"))) continue;
    all.push_back({key, found->value("title", ""), found->value("unit", ""),
                   found->value("format", ""), found->value("shown", false),
                   found->value("figure_of_merit", false)});
  }
  return all;
}

std::vector<FlatColumn> read_flat_columns() {
  const auto definitions = read_definitions();
  std::vector<FlatColumn> all;
  std::vector<FlatColumn> of_the_run;
  for (const auto& [name, rule] : definitions.at("flat_row").at("properties").items()) {
    const std::string from = rule.value("x-from", "");
    const bool is_of_the_run = !of_the_run.empty() || from.starts_with("context.");
    (is_of_the_run ? of_the_run : all).push_back({name, from});
  }
  for (const auto& definition : definitions) {
    const auto properties = definition.value("properties", nlohmann::ordered_json::object());
    for (const auto& [key, rule] : properties.items()) {
      const bool is_known = std::ranges::find(all, key, &FlatColumn::name) != all.end();
      if (rule.contains("x-counter") && !is_known) all.push_back({key, ""});
    }
  }
  std::ranges::move(of_the_run, std::back_inserter(all));
  return all;
}

}  // namespace

std::string Counter::text(double value) const {
  return format.empty() ? format_count(value) : fmt::format(fmt::runtime(format), value);
}

std::string Counter::heading(std::string_view value) const {
  std::vector<std::string_view> words = {title, value, unit};
  std::erase(words, "");
  return fmt::format("{}", fmt::join(words, " "));
}

const std::vector<Counter>& counters() {
  static const std::vector<Counter> all = read_counters();
  return all;
}

const std::vector<FlatColumn>& flat_columns() {
  static const std::vector<FlatColumn> all = read_flat_columns();
  return all;
}

std::vector<std::string> column_names() {
  std::vector<std::string> names = {kAllColumns};
  for (const Counter& one : counters()) names.push_back(one.key);
  return names;
}

const Counter& counter(std::string_view key) {
  const auto found = std::ranges::find(counters(), key, &Counter::key);
  if (found == counters().end())
    throw std::out_of_range(fmt::format("'{}': is no counter of results/schema.json", key));
  return *found;
}

}  // namespace tinyllama::harness

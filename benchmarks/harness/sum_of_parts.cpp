#include "benchmarks/harness/sum_of_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/statistics.hpp"
#include "core/text.hpp"

namespace tinyllama::harness {
namespace {

using Rows = std::vector<const MeasuredCase*>;

// The row of the step's variant; where that was not measured because it leaves the part as another
// variant has it, such as the baseline, or `optimized` without an operator, that one's.
const MeasuredCase* find_part(const Rows& measured, const Case& step, const PartOfStep& part) {
  const MeasuredCase* same = nullptr;
  for (const MeasuredCase* row : measured) {
    const Case& c = *row->test_case;
    if (c.component->name != part.component || c.pass != part.pass) continue;
    if (c.workload == step.workload) return row;
    Workload alike = c.workload;
    alike.variant = step.workload.variant;
    const bool fits =
        alike == step.workload &&
        c.workload.variant.same_in(c.component->parts_in(c.workload.config), step.workload.variant);
    if (fits && same == nullptr) same = row;
  }
  return same;
}

// `seconds`: of each part, and last of the whole.
double sum_of(const std::vector<PartOfStep>& parts, const std::vector<double>& seconds) {
  double sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) sum += static_cast<double>(parts[i].count) * seconds[i];
  return sum;
}

// `rows`: the parts' and last the whole's.
std::string lines(const std::vector<PartOfStep>& parts, const Rows& rows,
                  const MeasureInterleaved& measure) {
  std::vector<const Case*> cases;
  std::vector<double> of_rows;
  for (const MeasuredCase* row : rows) {
    cases.push_back(row->test_case);
    of_rows.push_back(row->seconds);
  }
  std::vector<double> again;
  for (const auto& rounds : measure ? measure(cases) : SecondsOfRounds())
    again.push_back(median(rounds));
  const std::vector<double>& seconds = again.empty() ? of_rows : again;
  std::vector<std::string> terms;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string times = parts[i].count == 1 ? "" : fmt::format("{} x ", parts[i].count);
    terms.push_back(fmt::format("{}{} {}", times, parts[i].component, format_seconds(seconds[i])));
  }
  const auto percent = [&](const std::vector<double>& of) {
    return 100 * sum_of(parts, of) / of.back();
  };
  const Case& c = *cases.back();
  return fmt::format(
      "sum of parts  {} {} {} batch {} seq {}: {:.1f} % of {} {} {}\n  {} = {}\n",
      c.workload.variant.name(), c.size, to_string(c.workload.dtype), c.workload.batch,
      c.workload.seq, percent(seconds), c.component->name, format_seconds(seconds.back()),
      again.empty() ? "(from the rows above)"
                    : fmt::format("(interleaved; {:.1f} % by the rows above)", percent(of_rows)),
      fmt::join(terms, " + "), format_seconds(sum_of(parts, seconds)));
}

}  // namespace

std::string sum_of_parts_lines(const Rows& measured, const PartsOfStep& step,
                               const MeasureInterleaved& measure) {
  std::string text;
  std::vector<std::string> lacking;
  for (const MeasuredCase* whole : measured) {
    if (whole->test_case->component->name != step.whole) continue;
    const std::vector<PartOfStep> parts = step.parts(whole->test_case->workload.config);
    Rows rows;
    std::vector<std::string> missing;
    for (const PartOfStep& part : parts) {
      rows.push_back(find_part(measured, *whole->test_case, part));
      if (!rows.back()) missing.push_back(part.component);
    }
    rows.push_back(whole);
    if (missing.empty()) {
      text += lines(parts, rows, measure);
    } else {
      lacking = missing;
    }
  }
  if (text.empty() && !lacking.empty()) {
    text = fmt::format("sum of parts  not computed: {} was measured at no point together with {}\n",
                       step.whole, fmt::join(lacking, ", "));
  }
  return text;
}

}  // namespace tinyllama::harness

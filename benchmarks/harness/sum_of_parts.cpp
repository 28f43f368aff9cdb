#include "benchmarks/harness/sum_of_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tinyllama::harness {
namespace {

struct Row {
  int64_t count;
  const MeasuredCase* measured;
};

const MeasuredCase* find_workload(const std::vector<MeasuredCase>& measured,
                                  const Workload& workload, const PartOfStep& part) {
  const auto found = std::ranges::find_if(measured, [&](const MeasuredCase& row) {
    const Case& c = *row.planned;
    return c.component->name == part.component && c.pass == part.pass && c.workload == workload;
  });
  return found == measured.end() ? nullptr : &*found;
}

const MeasuredCase* find_part(const std::vector<MeasuredCase>& measured, const Case& step,
                              const PartOfStep& part) {
  const MeasuredCase* row = find_workload(measured, step.workload, part);
  if (row) return row;
  // A part that the variant leaves as it is was measured as the baseline.
  Workload baseline = step.workload;
  baseline.variant = Variant();
  row = find_workload(measured, baseline, part);
  return row && !step.workload.variant.changes(row->planned->component->parts) ? row : nullptr;
}

// `seconds`: of each part, and last of the whole.
double sum_of(const std::vector<Row>& parts, const std::vector<double>& seconds) {
  double sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) sum += static_cast<double>(parts[i].count) * seconds[i];
  return sum;
}

// `seconds`: as above.
std::string line(const MeasuredCase& whole, const std::vector<Row>& parts,
                 const std::vector<double>& seconds) {
  const double sum = sum_of(parts, seconds);
  std::vector<std::string> terms;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string times = parts[i].count == 1 ? "" : fmt::format("{} x ", parts[i].count);
    terms.push_back(fmt::format("{}{} {}", times, parts[i].measured->planned->component->name,
                                format_seconds(seconds[i])));
  }
  const Case& c = *whole.planned;
  return fmt::format("sum of parts  {} {} {} batch {} seq {}: {} = {} = {:.1f} % of {} {}",
                     c.workload.variant.name(), c.size, to_string(c.workload.dtype),
                     c.workload.batch, c.workload.seq, fmt::join(terms, " + "), format_seconds(sum),
                     100 * sum / seconds.back(), c.component->name, format_seconds(seconds.back()));
}

}  // namespace

std::string sum_of_parts_lines(const std::vector<MeasuredCase>& measured, const PartsOfStep& step,
                               const MeasureInterleaved& measure) {
  std::string text;
  std::vector<std::string> lacking;
  for (const MeasuredCase& whole : measured) {
    if (whole.planned->component->name != step.whole) continue;
    std::vector<Row> parts;
    std::vector<std::string> missing;
    for (const PartOfStep& part : step.parts(whole.planned->workload.config)) {
      const MeasuredCase* row = find_part(measured, *whole.planned, part);
      if (row) {
        parts.push_back({part.count, row});
      } else {
        missing.push_back(part.component);
      }
    }
    if (!missing.empty()) {
      lacking = missing;
      continue;
    }
    std::vector<const MeasuredCase*> rows;
    for (const Row& part : parts) rows.push_back(part.measured);
    rows.push_back(&whole);
    std::vector<const Case*> cases;
    std::vector<double> seconds;
    for (const MeasuredCase* row : rows) {
      cases.push_back(row->planned);
      seconds.push_back(row->seconds);
    }
    const std::vector<double> again = measure ? measure(cases) : std::vector<double>();
    const bool interleaved = !again.empty();
    text += line(whole, parts, interleaved ? again : seconds) +
            (interleaved ? fmt::format(" (interleaved; {:.1f} % by the rows above)\n",
                                       100 * sum_of(parts, seconds) / seconds.back())
                         : " (from the rows above)\n");
  }
  if (text.empty() && !lacking.empty()) {
    text = fmt::format("sum of parts  not computed: {} was measured at no point together with {}\n",
                       step.whole, fmt::join(lacking, ", "));
  }
  return text;
}

}  // namespace tinyllama::harness

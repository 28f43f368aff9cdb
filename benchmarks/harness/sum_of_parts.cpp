#include "benchmarks/harness/sum_of_parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <random>

#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/memory_check.hpp"
#include "benchmarks/harness/tables.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kSliceSeconds = 0.02;
constexpr int64_t kMostRounds = 5;

const MeasuredCase* find(const std::vector<MeasuredCase>& measured, const Workload& workload,
                         const PartOfStep& part) {
  const auto found = std::ranges::find_if(measured, [&](const MeasuredCase& row) {
    const Case& c = *row.test_case;
    return c.component->name == part.component && c.pass == part.pass && c.workload == workload;
  });
  return found == measured.end() ? nullptr : &*found;
}

const MeasuredCase* find_part(const std::vector<MeasuredCase>& measured, const Case& step,
                              const PartOfStep& part) {
  const MeasuredCase* row = find(measured, step.workload, part);
  if (row) return row;
  // A part that the variant leaves as it is was measured as the baseline.
  Workload baseline = step.workload;
  baseline.variant = Variant();
  row = find(measured, baseline, part);
  return row && !step.workload.variant.changes(row->test_case->component->parts) ? row : nullptr;
}

// `seconds`: of each part, and last of the whole.
double sum_of(const std::vector<PartOfStep>& parts, const std::vector<double>& seconds) {
  double sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) sum += static_cast<double>(parts[i].count) * seconds[i];
  return sum;
}

// `rows`: the parts' and last the whole's.
std::string lines(const std::vector<PartOfStep>& parts,
                  const std::vector<const MeasuredCase*>& rows, const MeasureInterleaved& measure) {
  std::vector<const Case*> cases;
  std::vector<double> of_rows;
  for (const MeasuredCase* row : rows) {
    cases.push_back(row->test_case);
    of_rows.push_back(row->seconds);
  }
  const std::vector<double> again = measure ? measure(cases) : std::vector<double>();
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

std::string sum_of_parts_lines(const std::vector<MeasuredCase>& measured, const PartsOfStep& step,
                               const MeasureInterleaved& measure) {
  std::string text;
  std::vector<std::string> lacking;
  for (const MeasuredCase& whole : measured) {
    if (whole.test_case->component->name != step.whole) continue;
    const std::vector<PartOfStep> parts = step.parts(whole.test_case->workload.config);
    std::vector<const MeasuredCase*> rows;
    std::vector<std::string> missing;
    for (const PartOfStep& part : parts) {
      rows.push_back(find_part(measured, *whole.test_case, part));
      if (!rows.back()) missing.push_back(part.component);
    }
    rows.push_back(&whole);
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

std::vector<double> time_cases_interleaved(const instruments::Device& device,
                                           const std::vector<const Case*>& cases,
                                           const RunSettings& settings) {
  std::vector<double> medians;
  const std::string failure = failure_of(device, settings.memory_limit_bytes, [&] {
    const auto budget = memory_budget(device, settings.memory_limit_bytes, 0);
    const int64_t bytes = std::accumulate(
        cases.begin(), cases.end(), int64_t{0},
        [](int64_t sum, const Case* test_case) { return sum + test_case->memory().peak(); });
    if (bytes > budget.bytes) return;
    const auto flusher = settings.cold_cache ? std::make_unique<CacheFlusher>(device) : nullptr;
    std::vector<CaseWork> works;
    double round_seconds = 0;
    for (const Case* test_case : cases) {
      works.push_back(build_work(device, *test_case, settings.seed, settings.weights));
      const double seconds =
          warm_up(device, *works.back().item, kWarmUpSeconds, settings.max_seconds_per_case / 10);
      round_seconds += std::max(kSliceSeconds, seconds);
    }
    const auto rounds =
        std::min(kMostRounds, static_cast<int64_t>(settings.max_seconds_per_case / round_seconds));
    if (rounds < 1) return;
    std::vector<std::vector<double>> of_rounds(cases.size());
    std::vector<size_t> order(cases.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::mt19937 random(1);
    for (int64_t round = 0; round < rounds; ++round) {
      std::ranges::shuffle(order, random);
      for (const size_t i : order) {
        const TimingGoal slice{.min_seconds = kSliceSeconds};
        const Timing timing = time_until(device, *works[i].item, flusher.get(), slice);
        of_rounds[i].push_back(median(timing.seconds));
      }
    }
    std::ranges::transform(of_rounds, std::back_inserter(medians), median);
  });
  return failure.empty() ? medians : std::vector<double>();
}

}  // namespace tinyllama::harness

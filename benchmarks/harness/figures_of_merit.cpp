#include "benchmarks/harness/figures_of_merit.hpp"

#include <fmt/format.h>

#include <array>
#include <unordered_map>

#include "benchmarks/harness/summary.hpp"

namespace tinyllama::harness {
namespace {

struct Figure {
  const char* counter;
  const char* name;
  const char* unit;
};

constexpr std::array kFigures = {Figure{"samples_per_second", "samples_per_second", "samples/s"},
                                 Figure{"tokens_per_second", "tokens_per_second", "tokens/s"},
                                 Figure{"TFLOPS", "TFLOPS", "TFLOP/s"},
                                 Figure{"MFU_percent", "MFU_percent", "%"},
                                 Figure{"peak_percent", "peak_percent", "%"},
                                 Figure{"roof_percent", "roof_percent", "%"},
                                 Figure{"peak_memory_MiB", "peak_memory", "MiB"}};

std::string line(const std::string& name, double value, const char* unit) {
  return fmt::format("FOM {} = {:.6g} {}\n", name, value, unit);
}

std::string case_lines(const MeasuredCase& row) {
  const std::string name = row.planned->name();
  std::string text = line(name + "/time", row.seconds, "s");
  for (const Figure& figure : kFigures) {
    const auto value = row.entry.find(figure.counter);
    if (value != row.entry.end())
      text += line(fmt::format("{}/{}", name, figure.name), value->get<double>(), figure.unit);
  }
  return text;
}

}  // namespace

std::string figures_of_merit(const std::vector<Case>& cases, const std::vector<CaseResult>& results,
                             bool interrupted, size_t planned) {
  std::unordered_map<std::string, const Case*> by_name;
  for (const Case& one : cases) by_name.emplace(one.name(), &one);
  std::string text;
  size_t measured = 0;
  size_t failed = 0;
  size_t skipped = 0;
  for (const CaseResult& result : results) {
    if (result.entries.empty()) continue;
    failed += result.entries.front().contains("error_occurred") ? 1 : 0;
    skipped += result.entries.front().contains("skipped") ? 1 : 0;
    const auto found = by_name.find(result.name);
    std::string lines;
    if (const auto best = best_peak(result)) {
      lines = line(fmt::format("{}/{}", result.name, best->counter), best->value, best->unit);
    } else if (found != by_name.end()) {
      if (const auto row = measured_case(*found->second, result)) lines = case_lines(*row);
    }
    measured += lines.empty() ? 0 : 1;
    text += lines;
  }
  if (interrupted)
    return text +
           fmt::format("INTERRUPTED: {} of {} cases done\n", measured + failed + skipped, planned);
  if (failed > 0)
    return text +
           fmt::format("FAILED: {} of {} cases failed\n", failed, measured + failed + skipped);
  if (measured == 0) return text + fmt::format("NOTHING MEASURED: {} cases skipped\n", skipped);
  const std::string beside = skipped > 0 ? fmt::format(", {} skipped", skipped) : "";
  return text + fmt::format("SUCCESS: {} cases measured{}\n", measured, beside);
}

}  // namespace tinyllama::harness

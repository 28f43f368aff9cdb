#include "benchmarks/harness/measured_case.hpp"

#include <fmt/format.h>

namespace tinyllama::harness {
std::optional<MeasuredCase> measured_case(const Case& planned, const CaseResult& result) {
  const Json* chosen = nullptr;
  std::optional<double> spread;
  for (const auto& entry : result.entries) {
    if (!entry.contains("real_time") || entry.contains("error_occurred") ||
        entry.contains("skipped"))
      continue;
    const std::string aggregate = entry.value("aggregate_name", "");
    if (aggregate == "cv") spread = entry.at("real_time").get<double>();
    if (aggregate == "median" || (aggregate.empty() && !chosen)) chosen = &entry;
  }
  if (!chosen) return std::nullopt;
  const double seconds =
      chosen->at("real_time").get<double>() * seconds_of_unit(chosen->value("time_unit", "s"));
  return MeasuredCase{&planned, seconds, spread, *chosen};
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.3f} s", seconds);
}

}  // namespace tinyllama::harness

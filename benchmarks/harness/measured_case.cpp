#include "benchmarks/harness/measured_case.hpp"

#include <fmt/format.h>

namespace tinyllama::harness {
namespace {

double unit_seconds(const std::string& unit) {
  if (unit == "ns") return 1e-9;
  if (unit == "us") return 1e-6;
  if (unit == "ms") return 1e-3;
  return 1;
}

}  // namespace

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
      chosen->at("real_time").get<double>() * unit_seconds(chosen->value("time_unit", "s"));
  return MeasuredCase{&planned, seconds, spread, *chosen};
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.3f} s", seconds);
}

}  // namespace tinyllama::harness

#include "benchmarks/harness/case_counters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/statistics.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kMiB = 1048576.0;

double to_double(int64_t count) {
  return static_cast<double>(count);
}

// Whether the entry was measured, neither skipped nor failed.
bool has_rates(const Json& entry) {
  return entry.contains("samples_per_second");
}

// The highest rate of a single repetition, in iterations a second.
double highest_rate(const Case& test_case, const CaseResult& result) {
  double highest = 0;
  for (const Json& entry : result.entries) {
    if (has_rates(entry) && !entry.contains("aggregate_name"))
      highest = std::max(highest, entry.at("samples_per_second").get<double>());
  }
  return highest / to_double(test_case.workload.batch);
}

// A row's value of something that is proportional to the rate and `of_one_a_second` at one
// iteration per second; its coefficient of variation is the rate's.
double in_proportion(const Case& test_case, double of_one_a_second, const Json& entry) {
  const double samples = entry.at("samples_per_second").get<double>();
  if (entry.value("aggregate_name", "") == "cv") return samples;
  return of_one_a_second * samples / to_double(test_case.workload.batch);
}

// Why a case with this rate of iterations is faster than the peaks allow; empty where it is not.
std::string above_peak(const Case& test_case, const instruments::MeasuredPeaks& peaks,
                       double rate) {
  const Cost cost = test_case.cost();
  const std::string type = gemm_type_name(test_case.workload.dtype);
  constexpr const char* wrong = "the time, the count or the peak is wrong";
  if (cost.hardware_flops > 0) {
    const double flops = to_double(cost.hardware_flops) * rate;
    const double share = 100 * flops / peaks.measured_flops(type);
    if (share > 100 * instruments::kLargestShare) {
      return fmt::format("{:.4g} TFLOP/s are {:.0f} % of the measured {} peak: {}", flops * 1e-12,
                         share, type, wrong);
    }
    if (flops > peaks.mfu_flops(type) && peaks.mfu_flops(type) != peaks.measured_flops(type)) {
      return fmt::format("{:.4g} TFLOP/s are {:.0f} % of the datasheet's {} peak: {}",
                         flops * 1e-12, 100 * flops / peaks.mfu_flops(type), type, wrong);
    }
  }
  const double roof = shares(test_case, peaks).at("roof_percent") * rate;
  if (roof <= 100 * instruments::kLargestShare) return {};
  return fmt::format("{:.4g} s are {:.0f} % of what the measured roofline allows: {}", 1 / rate,
                     roof, wrong);
}

}  // namespace

Counters rate_counters(const Case& test_case, double seconds) {
  const Cost cost = test_case.cost();
  Counters counters;
  counters["samples_per_second"] = to_double(test_case.workload.batch) / seconds;
  counters["tokens_per_second"] = to_double(test_case.workload.tokens()) / seconds;
  counters["GB_per_second"] = to_double(cost.bytes) / seconds * 1e-9;
  if (cost.model_flops > 0) counters["TFLOPS"] = to_double(cost.model_flops) / seconds * 1e-12;
  return counters;
}

Counters fixed_counters(const Case& test_case, const Metering& metering) {
  const Cost cost = test_case.cost();
  Counters counters;
  counters["parameters"] = to_double(cost.parameters);
  counters["model_flops"] = to_double(cost.model_flops);
  counters["causal_flops"] = to_double(cost.causal_flops);
  counters["lookup_flops"] = to_double(cost.lookup_flops);
  if (cost.comm_calls > 0) {
    counters["comm_calls"] = to_double(cost.comm_calls);
    counters["comm_bytes"] = to_double(cost.comm_bytes);
  }
  counters["opaque_flops"] = to_double(cost.opaque_flops);
  counters["hardware_flops"] = to_double(cost.hardware_flops);
  counters["elementwise_flops"] = to_double(cost.elementwise_flops);
  counters["bytes"] = to_double(cost.bytes);
  counters["flop_per_byte"] = to_double(cost.intensity_flops()) / to_double(cost.bytes);
  counters["peak_memory_MiB"] = to_double(metering.peak_bytes) / kMiB;
  if (test_case.workload.variant.runs_on_meta())
    counters["predicted_memory_MiB"] = to_double(test_case.memory().peak()) / kMiB;
  if (metering.library_scratch_bytes)
    counters["library_scratch_MiB"] = to_double(*metering.library_scratch_bytes) / kMiB;
  counters["allocations"] = to_double(metering.allocations);
  counters["operators"] = to_double(metering.operators);
  counters["counted_flops"] = to_double(metering.profile.gemm_flops);
  if (metering.profile.kernels) counters["kernels"] = to_double(*metering.profile.kernels);
  for (const auto& [name, count] : metering.hardware.counts) counters[name] = count;
  return counters;
}

Counters device_counters(const Metering& metering, const Timing& timing) {
  Counters counters;
  if (timing.runs > 1) counters["runs_per_sample"] = to_double(timing.runs);
  if (!metering.profile.device_seconds) return counters;
  const double device = *metering.profile.device_seconds;
  counters["device_ms"] = device * 1e3;
  counters["host_bound"] = waits_for_host(median(timing.seconds), device) ? 1.0 : 0.0;
  return counters;
}

Counters sensor_counters(const Case& test_case, const instruments::SystemSamples& samples,
                         double mean_seconds) {
  Counters counters;
  for (const auto& [name, reading] : samples.readings) {
    if (name == "clock_MHz" || name == "temperature_celsius") counters[name] = reading.mean;
    if (name.starts_with("limited_by_") && reading.maximum > 0) counters[name] = reading.mean;
    if (name != "power_watts") continue;
    counters["power_W"] = reading.mean;
    counters["joules_per_token"] =
        reading.mean * mean_seconds / to_double(test_case.workload.tokens());
  }
  return counters;
}

Counters shares(const Case& test_case, const instruments::MeasuredPeaks& peaks) {
  const Cost cost = test_case.cost();
  const std::string type = gemm_type_name(test_case.workload.dtype);
  Counters counters;
  double shortest = to_double(cost.bytes) / peaks.bandwidth(cost.bytes);
  if (cost.model_flops > 0) {
    counters["MFU_percent"] = 100 * to_double(cost.model_flops) / peaks.mfu_flops(type);
    counters["MFU_causal_percent"] = 100 * to_double(cost.causal_flops) / peaks.mfu_flops(type);
  }
  if (cost.hardware_flops > 0) {
    const double seconds = to_double(cost.hardware_flops) / peaks.measured_flops(type);
    counters["peak_percent"] = 100 * seconds;
    shortest = std::max(shortest, seconds);
  }
  // The roofline's time is the longer of the two at their peaks: matrix multiplications and
  // traffic.
  counters["roof_percent"] = 100 * shortest;
  return counters;
}

void add_shares(const Case& test_case, const instruments::MeasuredPeaks& peaks,
                CaseResult& result) {
  const double highest = highest_rate(test_case, result);
  if (!(highest > 0)) return;
  const Counters of_one_a_second = shares(test_case, peaks);
  const std::string reason = above_peak(test_case, peaks, highest);
  for (Json& entry : result.entries) {
    if (!has_rates(entry)) continue;
    entry.erase("above_peak");
    for (const auto& [name, share] : of_one_a_second) {
      entry.erase(name);
      if (reason.empty()) entry[name] = in_proportion(test_case, share, entry);
    }
    if (!reason.empty()) entry["above_peak"] = reason;
  }
}

void add_all_shares(const std::vector<Case>& cases, const instruments::MeasuredPeaks& peaks,
                    std::vector<CaseResult>& results) {
  for (const Case& test_case : cases) {
    const auto own = std::ranges::find(results, test_case.name(), &CaseResult::name);
    if (own != results.end()) add_shares(test_case, peaks, *own);
  }
}

}  // namespace tinyllama::harness

#include "benchmarks/harness/counters.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tinyllama::harness {
namespace {

constexpr double kMiB = 1048576.0;

double to_double(int64_t count) {
  return static_cast<double>(count);
}

// Of what was measured; nothing in a case that was skipped or failed.
bool has_rates(const Json& entry) {
  return entry.contains("samples_per_second");
}

// The highest rate of a single repetition, in iterations a second.
double highest_rate(const Case& planned, const CaseResult& result) {
  double highest = 0;
  for (const Json& entry : result.entries) {
    if (has_rates(entry) && !entry.contains("aggregate_name"))
      highest = std::max(highest, entry.at("samples_per_second").get<double>());
  }
  return highest / to_double(planned.workload.batch);
}

// Why a case of so many iterations a second is too fast for these peaks; empty where it is not.
std::string above_peak(const Case& planned, const PeakBook& peaks, double rate) {
  const Cost cost = planned.cost();
  const std::string type = product_type_name(planned.workload.dtype);
  constexpr const char* wrong = "the time, the count or the peak is wrong";
  if (cost.hardware_flops > 0) {
    const double flops = to_double(cost.hardware_flops) * rate;
    const double share = 100 * flops / peaks.measured_flops(type);
    if (share > 100 * kLargestShare) {
      return fmt::format("{:.4g} TFLOP/s are {:.0f} % of the measured {} peak: {}", flops * 1e-12,
                         share, type, wrong);
    }
    if (flops > peaks.mfu_flops(type) && peaks.mfu_flops(type) != peaks.measured_flops(type)) {
      return fmt::format("{:.4g} TFLOP/s are {:.0f} % of the datasheet's {} peak: {}",
                         flops * 1e-12, 100 * flops / peaks.mfu_flops(type), type, wrong);
    }
  }
  const double roof = shares(planned, peaks).at("roof_percent") * rate;
  if (roof <= 100 * kLargestShare) return {};
  return fmt::format("{:.4g} s are {:.0f} % of what the measured roofline allows: {}", 1 / rate,
                     roof, wrong);
}

}  // namespace

Counters rate_counters(const Case& planned, double seconds) {
  const Cost cost = planned.cost();
  Counters counters;
  counters["samples_per_second"] = to_double(planned.workload.batch) / seconds;
  counters["tokens_per_second"] = to_double(planned.workload.tokens()) / seconds;
  counters["GB_per_second"] = to_double(cost.bytes) / seconds * 1e-9;
  if (cost.model_flops > 0) counters["TFLOPS"] = to_double(cost.model_flops) / seconds * 1e-12;
  return counters;
}

Counters fixed_counters(const Case& planned, const Metering& metering) {
  const Cost cost = planned.cost();
  const int64_t intensity_flops =
      cost.hardware_flops > 0 ? cost.hardware_flops : cost.elementwise_flops;
  Counters counters;
  counters["parameters"] = to_double(cost.parameters);
  counters["model_flops"] = to_double(cost.model_flops);
  counters["causal_flops"] = to_double(cost.causal_flops);
  counters["lookup_flops"] = to_double(cost.lookup_flops);
  counters["opaque_flops"] = to_double(cost.opaque_flops);
  counters["hardware_flops"] = to_double(cost.hardware_flops);
  counters["elementwise_flops"] = to_double(cost.elementwise_flops);
  counters["bytes"] = to_double(cost.bytes);
  counters["flop_per_byte"] = to_double(intensity_flops) / to_double(cost.bytes);
  counters["peak_memory_MiB"] = to_double(metering.peak_bytes) / kMiB;
  counters["predicted_memory_MiB"] = to_double(planned.memory().peak()) / kMiB;
  if (metering.library_scratch_bytes)
    counters["library_scratch_MiB"] = to_double(*metering.library_scratch_bytes) / kMiB;
  counters["allocations"] = to_double(metering.allocations);
  counters["operators"] = to_double(metering.operators);
  counters["counted_flops"] = to_double(metering.profile.product_flops);
  if (metering.profile.kernels) counters["kernels"] = to_double(*metering.profile.kernels);
  return counters;
}

Counters shares(const Case& planned, const PeakBook& peaks) {
  const Cost cost = planned.cost();
  const std::string type = product_type_name(planned.workload.dtype);
  Counters counters;
  double shortest = to_double(cost.bytes) / peaks.bandwidth(cost.bytes);
  if (cost.model_flops > 0) {
    counters["MFU_percent"] = 100 * to_double(cost.model_flops) / peaks.mfu_flops(type);
    counters["MFU_causal_percent"] = 100 * to_double(cost.causal_flops) / peaks.mfu_flops(type);
  }
  if (cost.hardware_flops > 0) {
    const double products = to_double(cost.hardware_flops) / peaks.measured_flops(type);
    counters["peak_percent"] = 100 * products;
    shortest = std::max(shortest, products);
  }
  // The roofline allows whichever of products and traffic takes longer at its peak.
  counters["roof_percent"] = 100 * shortest;
  return counters;
}

void add_shares(const Case& planned, const PeakBook& peaks, CaseResult& result) {
  const double highest = highest_rate(planned, result);
  if (!(highest > 0)) return;
  const Counters of_one_a_second = shares(planned, peaks);
  const std::string reason = above_peak(planned, peaks, highest);
  for (Json& entry : result.entries) {
    if (!has_rates(entry)) continue;
    entry.erase("above_peak");
    for (const auto& [name, share] : of_one_a_second) entry.erase(name);
    if (!reason.empty()) {
      entry["above_peak"] = reason;
      continue;
    }
    const double samples = entry.at("samples_per_second").get<double>();
    // A coefficient of variation is the same for whatever is in proportion to the rate.
    const bool is_variation = entry.value("aggregate_name", "") == "cv";
    for (const auto& [name, share] : of_one_a_second)
      entry[name] = is_variation ? samples : share * samples / to_double(planned.workload.batch);
  }
}

}  // namespace tinyllama::harness

#include "benchmarks/harness/counters.hpp"

#include <algorithm>

namespace tinyllama::harness {

Counters rate_counters(const Case& planned, double seconds, const PeakBook& peaks) {
  const Cost cost = planned.cost();
  const std::string type = product_type_name(planned.workload.dtype);
  const auto bytes = static_cast<double>(cost.bytes);
  const double bandwidth = peaks.bandwidth(cost.bytes);
  Counters counters;
  counters["samples_per_second"] = static_cast<double>(planned.workload.batch) / seconds;
  counters["tokens_per_second"] = static_cast<double>(planned.workload.tokens()) / seconds;
  counters["GB_per_second"] = bytes / seconds * 1e-9;
  double shortest = bytes / bandwidth;
  if (cost.model_flops > 0) {
    const double rate = static_cast<double>(cost.useful_flops) / seconds;
    counters["TFLOPS"] = rate * 1e-12;
    counters["MFU_percent"] = 100.0 * rate / peaks.mfu_flops(type);
    counters["peak_percent"] = 100.0 * rate / peaks.measured_flops(type);
    shortest =
        std::max(shortest, static_cast<double>(cost.useful_flops) / peaks.measured_flops(type));
  }
  // The roofline allows whichever of products and traffic takes longer at its peak.
  counters["roof_percent"] = 100.0 * shortest / seconds;
  return counters;
}

Counters fixed_counters(const Case& planned, const Metering& metering) {
  const Cost cost = planned.cost();
  const int64_t intensity_flops = cost.model_flops > 0 ? cost.model_flops : cost.elementwise_flops;
  Counters counters;
  counters["parameters"] = static_cast<double>(cost.parameters);
  counters["model_flops"] = static_cast<double>(cost.model_flops);
  counters["causal_flops"] = static_cast<double>(cost.causal_flops);
  counters["lookup_flops"] = static_cast<double>(cost.lookup_flops);
  counters["opaque_flops"] = static_cast<double>(cost.opaque_flops);
  counters["useful_flops"] = static_cast<double>(cost.useful_flops);
  counters["hardware_flops"] = static_cast<double>(cost.hardware_flops);
  counters["elementwise_flops"] = static_cast<double>(cost.elementwise_flops);
  counters["bytes"] = static_cast<double>(cost.bytes);
  counters["flop_per_byte"] =
      static_cast<double>(intensity_flops) / static_cast<double>(cost.bytes);
  counters["peak_memory_MiB"] = static_cast<double>(metering.peak_bytes) / 1048576.0;
  counters["predicted_memory_MiB"] = static_cast<double>(planned.memory().peak()) / 1048576.0;
  counters["allocations"] = static_cast<double>(metering.allocations);
  counters["operators"] = static_cast<double>(metering.operators);
  counters["counted_flops"] = static_cast<double>(metering.profile.product_flops);
  if (metering.profile.kernels)
    counters["kernels"] = static_cast<double>(*metering.profile.kernels);
  return counters;
}

}  // namespace tinyllama::harness

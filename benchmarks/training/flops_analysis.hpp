// The FLOPS profile: exact costs over measured times, against measured and datasheet peaks.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/training/operator_profile.hpp"
#include "model/cost.hpp"

namespace tinyllama::training {

/// What a part of a training step costs by the exact formulas.
struct ComponentCost {
  std::string name;  ///< path of docs/training_files.md; "attention" stands for all below it
  int64_t parameters = 0;
  int64_t forward_flops = 0;  ///< model_flops, as backward_flops
  int64_t backward_flops = 0;
  int64_t elementwise_flops = 0;  ///< of both passes; 0 for parts that cost.hpp does not tell apart
  int64_t bytes = 0;              ///< least traffic of both passes; 0 likewise
  int64_t hardware_flops = 0;     ///< those of both passes that really run; 0 likewise
};

/// Costs of one step with `micro_batches` of this workload: the components as cost.hpp has them,
/// each followed by its parts.
std::vector<ComponentCost> component_costs(const Workload& workload, int64_t micro_batches);
/// Cost of one whole step: the passes of all micro-batches and one update.
Cost step_cost(const Workload& workload, int64_t micro_batches);

/// What rates are divided by.
struct Denominators {
  instruments::MeasuredPeak measured_flops;  ///< of GEMMs in the type that the workload's run in
  instruments::Bandwidth bandwidth;
  std::optional<instruments::DatasheetPeaks> datasheet;
  std::string gemm_type;  ///< "f32", ...: which of the datasheet's figures counts
};
struct FlopsMeasurement {
  int64_t step = 0;         ///< whose components were timed
  double step_seconds = 0;  ///< of a step without any profiler
  int64_t micro_batches = 1;
  StepComponents times;     ///< of the timed step
  int64_t all_samples = 1;  ///< of a step, on all ranks
};

/// The best of what `measure` returns. A peak below what the step reached was measured while the
/// machine was busy, and is measured again, at most twice.
instruments::MeasuredPeak peak_of_step(const Workload& workload,
                                       const FlopsMeasurement& measurement,
                                       const std::function<instruments::MeasuredPeak()>& measure);
/// Takes some seconds.
Denominators measure_denominators(const instruments::Device& device, const Workload& workload,
                                  const FlopsMeasurement& measurement,
                                  const std::filesystem::path& device_peaks);

/// The three files of docs/training_files.md, each under its name. Throws std::runtime_error where
/// the step is more than 5 % faster than its denominator: that is an error, and no figure.
nlohmann::ordered_json analyze_flops(const Workload& workload, const FlopsMeasurement& measurement,
                                     const Denominators& denominators);

/// "memory-bound" below 10 FLOP/byte, "compute-bound" above 100, else "mixed".
std::string classify_intensity(double flop_per_byte);

}  // namespace tinyllama::training

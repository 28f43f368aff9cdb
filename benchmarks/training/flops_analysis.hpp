// The FLOPS profile: exact costs over measured times, against measured and datasheet peaks.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/training/operator_recording.hpp"
#include "model/cost.hpp"

namespace tinyllama::training {

/// What a part of a training step costs by the exact formulas; of parts that cost.hpp does not tell
/// apart only parameters and model_flops.
struct ComponentCost {
  std::string name;  ///< path of docs/training_files.md; "attention" stands for all below it
  Cost forward{};    ///< with the parameters
  Cost backward{};
};

/// Costs of one step with `micro_batches` of this workload: the components as cost.hpp has them,
/// each followed by its parts.
std::vector<ComponentCost> component_costs(const Workload& workload, int64_t micro_batches);

struct FlopsMeasurement {
  int64_t step = 0;         ///< whose components were timed
  double step_seconds = 0;  ///< of a step without any profiler
  int64_t micro_batches = 1;
  StepComponents times;     ///< of the timed step
  int64_t all_samples = 1;  ///< of a step, on all ranks
};

/// FLOP/s of all that really ran, recomputation too, which alone no peak allows to be exceeded.
double hardware_rate(const Workload& workload, const FlopsMeasurement& measurement);

/// What the step is held against. Takes some seconds.
instruments::MeasuredPeaks measure_peaks(const instruments::Device& device,
                                         const Workload& workload,
                                         const FlopsMeasurement& measurement,
                                         const std::filesystem::path& device_peaks);

/// The three files of docs/training_files.md, each under its name. Throws std::runtime_error where
/// the step is faster than kLargestShare of a peak: that is an error, and no figure.
nlohmann::ordered_json analyze_flops(const Workload& workload, const FlopsMeasurement& measurement,
                                     const instruments::MeasuredPeaks& peaks);

/// "memory-bound" below 10 FLOP/byte, "compute-bound" above 100, else "mixed".
std::string classify_intensity(double flop_per_byte);

}  // namespace tinyllama::training

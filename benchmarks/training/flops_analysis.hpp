// The FLOPS profile: exact costs over measured times, against measured and datasheet peaks.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/training/operator_statistics.hpp"
#include "model/cost.hpp"

namespace tinyllama::training {

/// What rates are divided by.
struct Denominators {
  instruments::MeasuredPeak measured_flops;  ///< products in the type that the workload's run in
  instruments::Bandwidth bandwidth;
  std::optional<instruments::DatasheetPeaks> datasheet;
  std::string product_type;  ///< "f32", ...: which of the datasheet's figures counts
  instruments::DeviceDescription device;
};
struct FlopsMeasurement {
  int64_t step = 0;         ///< whose components were timed
  double step_seconds = 0;  ///< of a step without any profiler
  int64_t micro_batches = 1;
  std::map<std::string, ComponentSeconds> components;  ///< of the timed step, by path
  ComponentSeconds softmax;                            ///< of it, in the attention's softmax
};

/// Takes some seconds. A peak below what the step reached was measured while the machine was busy,
/// and is measured again, at most twice.
Denominators measure_denominators(const instruments::Device& device, const Workload& workload,
                                  const FlopsMeasurement& measurement,
                                  const std::filesystem::path& device_peaks);

struct FlopsAnalysis {
  Json flops_profile;
  Json computational_intensity;
  Json roofline_data;
};
/// The three files of docs/training_files.md. Throws std::runtime_error where the step is more than
/// 5 % faster than its denominator: that is an error, and no figure.
FlopsAnalysis analyze_flops(const Workload& workload, const FlopsMeasurement& measurement,
                            const Denominators& denominators);

/// Exercise 3's words for an MFU.
std::string classify_mfu(double mfu_percent);
/// "memory-bound" below 10 FLOP/byte, "compute-bound" above 100, else "mixed".
std::string classify_intensity(double flop_per_byte);

}  // namespace tinyllama::training

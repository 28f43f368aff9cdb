// The operator profiler: records steps with Kineto, one recording a step, adds up what their
// operators cost, and writes their trace.
#pragma once

#include <ATen/record_function.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/operator_profile.hpp"
#include "benchmarks/instruments/trace_file.hpp"
#include "benchmarks/training/component_ranges.hpp"
#include "benchmarks/training/train_options.hpp"

namespace tinyllama::training {

struct ComponentSeconds {
  double forward = 0;
  double backward = 0;
  double total() const { return forward + backward; }
};

/// Seconds a step, by the device's clock on a GPU.
struct StepComponents {
  std::map<std::string, ComponentSeconds> components;  ///< by path
  ComponentSeconds softmax;  ///< of them, in the attention's; 0 where no softmax ran by itself
};

class OperatorRecorder {
 public:
  /// `folder` exists. Throws std::runtime_error, as the others do, where it cannot be written to.
  OperatorRecorder(const TrainOptions& options, const instruments::Device& device,
                   const std::filesystem::path& folder);
  ~OperatorRecorder();

  /// Whether the step is one of the operator profiler's or the FLOPS profiler's.
  bool wants(int64_t step) const;
  void begin_step(int64_t step);
  /// Ends the recording, adds it up and appends it to the trace; takes some tenths of a second.
  void end_step();
  /// Puts the trace and TensorBoard's copy in place. Returns their names; none where nothing was
  /// recorded.
  std::vector<std::string> finish();

  /// `operators` of docs/training_files.md; null where no step was recorded for it.
  nlohmann::ordered_json to_json() const;
  /// The times of the FLOPS profiler's step, where it was recorded.
  std::optional<StepComponents> flops_components() const;

 private:
  class Statistics;

  StepRange operator_steps_;
  StepRange flops_steps_;
  instruments::Device device_;
  instruments::KinetoDetail detail_;
  std::filesystem::path folder_;
  std::unique_ptr<Statistics> statistics_;
  std::unique_ptr<Statistics> flops_statistics_;
  std::unique_ptr<instruments::TraceFile> trace_;
  std::unique_ptr<instruments::KinetoSession> session_;
  std::unique_ptr<ComponentTracker> tracker_;
  std::unique_ptr<at::RecordFunction> step_range_;
  std::string step_range_name_;
  int64_t step_ = 0;
  int64_t last_recorded_ = 0;
};

}  // namespace tinyllama::training

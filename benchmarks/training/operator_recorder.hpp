// The operator profiler: records steps with Kineto, one recording a step, and writes their trace.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/operator_profile.hpp"
#include "benchmarks/training/component_tracker.hpp"
#include "benchmarks/training/operator_statistics.hpp"
#include "benchmarks/training/trace_file.hpp"
#include "benchmarks/training/train_options.hpp"

namespace tinyllama::training {

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
  Json to_json() const;
  /// Of the FLOPS profiler's step, where it was recorded.
  const OperatorStatistics* flops_statistics() const;

 private:
  void append_to_trace(torch::autograd::profiler::ProfilerResult& result);

  StepRange operator_steps_;
  StepRange flops_steps_;
  instruments::Device device_;
  instruments::KinetoDetail detail_;
  std::filesystem::path folder_;
  OperatorStatistics statistics_;
  OperatorStatistics flops_statistics_;
  std::unique_ptr<TraceFile> trace_;
  std::unique_ptr<instruments::KinetoSession> session_;
  std::unique_ptr<ComponentTracker> tracker_;
  std::unique_ptr<at::RecordFunction> step_range_;
  std::string step_range_name_;
  int64_t step_ = 0;
  int64_t last_recorded_ = 0;
};

}  // namespace tinyllama::training

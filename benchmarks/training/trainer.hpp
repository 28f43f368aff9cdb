// The training loop: steps with their phases timed, profilers around the steps they want.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "benchmarks/training/data_parallel.hpp"
#include "benchmarks/training/memory_recorder.hpp"
#include "benchmarks/training/model_state.hpp"
#include "benchmarks/training/operator_recorder.hpp"
#include "benchmarks/training/phase_clock.hpp"
#include "benchmarks/training/token_data.hpp"
#include "benchmarks/training/train_record.hpp"

namespace tinyllama::training {

/// The profilers of a run; null where they are off.
struct Profilers {
  OperatorRecorder* operators = nullptr;
  /// Gets the recorded steps, once.
  std::function<void(MemoryRecording)> keep_memory;
  /// Whether somebody outside (RangeEmitter) wants forward and backward as ranges.
  bool phase_ranges = false;
};

class Trainer {
 public:
  /// Holds references; everything must outlive it. `parallel`: null for a process alone.
  Trainer(const TrainOptions& options, const instruments::Device& device, ModelState& state,
          TokenData& data, Profilers profilers, DataParallel* parallel = nullptr);

  /// Called with each finished step, in order: at once on a CPU, every --log-interval steps on a
  /// GPU, which need not be waited for in between.
  void on_step(std::function<void(const StepRecord&)> report) { report_ = std::move(report); }

  /// Runs until the last step, an interrupt, or a loss that is not finite, which is the last
  /// reported. Throws std::runtime_error where a profiler's file cannot be written, after the step
  /// was reported.
  void run();

 private:
  struct Pending {
    StepRecord record;
    at::Tensor loss;
  };
  class MemoryWindow;

  void run_step(int64_t step);
  at::Tensor train(int64_t step);
  void begin(Phase phase);
  void evaluate(Pending& pending, int64_t step);
  /// Waits for the device and reports what is pending; false where a loss is not finite.
  bool report_pending();
  bool is_due(int64_t step) const;
  void compute_gradients(const at::Tensor& loss, bool is_last);
  void update_parameters();
  bool interrupted() const;

  const TrainOptions& options_;
  instruments::Device device_;
  ModelState& state_;
  TokenData& data_;
  Profilers profilers_;
  DataParallel* parallel_;
  /// Some rank's signal, as all ranks know it.
  bool interrupted_together_ = false;
  std::function<void(const StepRecord&)> report_ = [](const StepRecord&) {};
  PhaseClock clock_;
  instruments::MemoryMeter meter_;
  std::optional<StepGraph> graph_;
  /// A replay allocates nothing: what it uses was allocated while it was captured.
  int64_t capture_peak_bytes_ = 0;
  TokenBatch graph_batch_;
  std::unique_ptr<MemoryRecorder> memory_;
  std::unique_ptr<at::RecordFunction> phase_range_;
  std::vector<Pending> pending_;
};

}  // namespace tinyllama::training

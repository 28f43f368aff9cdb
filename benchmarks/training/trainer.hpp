// The training loop: steps with their phases timed, profilers around the steps they want, and with
// several ranks the sums over them.
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/distributed/gradient_reducer.hpp"
#include "benchmarks/distributed/process_group.hpp"
#include "benchmarks/distributed/sharded_parameters.hpp"
#include "benchmarks/distributed/tensor_parallel.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "benchmarks/training/memory_recording.hpp"
#include "benchmarks/training/operator_recording.hpp"
#include "benchmarks/training/token_data.hpp"
#include "benchmarks/training/train_options.hpp"
#include "model/adamw.hpp"
#include "model/tiny_llama.hpp"
#include "model/train_step.hpp"

namespace tinyllama::training {

/// The model with its optimizer, and the ways to run a step of it.
struct ModelState {
  /// Weights from --weights or drawn from the seed, of --share tensor this rank's share. `check`
  /// sees them whole before. Throws what `check` and Weights throw, c10::Error where memory does
  /// not suffice.
  ModelState(
      const TrainOptions& options, c10::Device device,
      const std::function<void(const NamedTensors&)>& check = [](const NamedTensors&) {});

  /// Mean loss over the batch, without gradients.
  double evaluate(const TokenBatch& batch) const;

  TensorInitializer initializer;
  TinyLlama model;
  AdamW optimizer;
  TrainStep step;
  std::string config_text;  ///< config.json of --weights, --config or the model that --size names
  std::string not_read;     ///< Weights::not_read() of them
};

/// Seconds of each phase of one step, and of the whole.
struct PhaseTimes {
  std::array<double, kPhases.size()> seconds{};
  double& operator[](Phase phase) { return seconds[static_cast<size_t>(phase)]; }
  double operator[](Phase phase) const { return seconds[static_cast<size_t>(phase)]; }
  double total() const;
};

/// Which profiler recorded a step.
enum class Profiled { no, operators, memory };

struct StepRecord {
  int64_t step = 0;  ///< from 1
  double loss = 0;   ///< mean over the micro-batches of all ranks, before the update
  PhaseTimes times;
  int64_t peak_memory_bytes = 0;                                ///< of tensors
  std::optional<int64_t> library_scratch_bytes = std::nullopt;  ///< beside them, where told apart
  Profiled profiled = Profiled::no;
  std::optional<double> evaluation_loss;
};
/// The records of a whole run. A deque, because a vector copies its elements as it grows and keeps
/// up to twice the memory.
using StepRecords = std::deque<StepRecord>;

class Trainer {
 public:
  /// Holds references; everything must outlive it. `operators`: null without that profiler.
  /// `group`: the ranks that train together as --share says, with the same weights at first; null
  /// for a process alone.
  Trainer(const TrainOptions& options, const instruments::Device& device, ModelState& state,
          TokenData& data, OperatorRecorder* operators = nullptr,
          distributed::ProcessGroup* group = nullptr);
  ~Trainer();

  /// Called with each finished step, in order: at once on a CPU, every --log-interval steps on a
  /// GPU, which need not be waited for in between.
  void on_step(std::function<void(const StepRecord&)> report) { report_ = std::move(report); }

  /// Runs until the last step, an interrupt, or a loss that is not finite, which is the last
  /// reported. Throws std::runtime_error where a profiler's file cannot be written, after the step
  /// was reported; RankLostError where another rank is lost.
  void run();
  /// The trained parameters, whole on every rank. All ranks have to call it.
  NamedTensors whole_parameters();
  /// The recording of --profile-memory, where its steps were run.
  std::optional<MemoryRecording>& memory_recording() { return memory_recording_; }

 private:
  struct Pending {
    StepRecord record;
    at::Tensor loss;
  };
  class PhaseClock;

  void share_steps();
  void run_step(int64_t step);
  at::Tensor train(int64_t step);
  /// How many ranks have samples of their own.
  int64_t sample_ranks() const;
  void begin(Phase phase);
  void backward(const at::Tensor& loss, bool is_last);
  void update();
  void evaluate(Pending& pending, int64_t step);
  /// Waits for the device and reports what is pending; false where a loss is not finite.
  bool report_pending();
  void agree(StepRecord& record);
  void finish_memory();
  bool interrupted() const;

  const TrainOptions& options_;
  instruments::Device device_;
  ModelState& state_;
  TokenData& data_;
  OperatorRecorder* operators_;
  distributed::ProcessGroup* group_;
  // With ranks one of them, as --share says.
  std::optional<distributed::GradientReducer> reducer_;
  std::optional<distributed::ShardedAdamW> sharded_;
  std::optional<distributed::ShardedParameters> sharded_parameters_;
  std::optional<distributed::TensorParallel> tensor_parallel_;
  /// Some rank's signal, as all ranks know it.
  bool interrupted_together_ = false;
  std::function<void(const StepRecord&)> report_ = [](const StepRecord&) {};
  std::unique_ptr<PhaseClock> clock_;
  instruments::MemoryMeter meter_;
  std::optional<StepGraph> graph_;
  /// A replay allocates nothing: what it uses was allocated while it was captured.
  int64_t capture_peak_bytes_ = 0;
  TokenBatch graph_batch_;
  std::unique_ptr<MemoryRecorder> memory_;
  std::optional<MemoryRecording> memory_recording_;
  std::unique_ptr<at::RecordFunction> phase_range_;
  std::vector<Pending> pending_;
};

}  // namespace tinyllama::training

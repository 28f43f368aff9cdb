// The ways in which the ranks run a training step, so that their differences say what
// communication costs.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "benchmarks/distributed/gradient_reducer.hpp"
#include "benchmarks/distributed/process_group.hpp"
#include "benchmarks/distributed/sharded_adamw.hpp"
#include "benchmarks/scaling/scaling_options.hpp"
#include "model/train_step.hpp"

namespace tinyllama::scaling {

enum class StepMode {
  alone,         ///< rank 0 computes a plain step, the others wait without using a processor
  alone_global,  ///< the same with the samples of all ranks: what strong scaling starts from
  local,         ///< every rank computes a plain step of its own
  no_overlap,    ///< gradients are summed after the backward
  overlap,       ///< gradients are summed while the backward runs
  sharded,       ///< the same, with an optimizer state that is cut over the ranks
  communication  ///< the sums alone
};
std::string_view to_string(StepMode mode);

/// Those that a run with these options has, in the order of its results.
std::vector<StepMode> step_modes(const ScalingOptions& options, int ranks);

/// What one rank measured of some steps.
struct StepTimes {
  std::vector<double> seconds = {};  ///< each step's; empty where the rank had nothing to do
  /// Mean of a step over all threads of this process; waiting for other ranks before it, and
  /// clearing gradients, are left out.
  double cpu_seconds = 0;
};

/// A model with its optimizer and this rank's samples.
class StepSession {
 public:
  /// Every rank has the same weights, and its own rows of one batch for all. Holds a reference to
  /// the group.
  StepSession(const ScalingOptions& options, distributed::ProcessGroup& group);
  ~StepSession();

  /// All ranks have to call it, with the same arguments.
  StepTimes time_steps(StepMode mode, int64_t steps);

  /// Sets up what the mode needs for backwards that follow; detach() makes them plain again.
  void attach(StepMode mode);
  void detach();
  /// One forward and backward of this rank's samples, gradients summed over the ranks as the mode
  /// of attach() says.
  void compute_gradients();
  /// The sum over the samples of all ranks, on rank 0 alone, a rank's share at a time, so that it
  /// needs no more memory than a step and nobody waits for longer. All ranks have to call it.
  void compute_global_gradients();
  bool update() { return step_.update(); }
  void clear_gradients() { optimizer_.clear_gradients(); }
  /// A whole step of the model whose optimizer is sharded, after attach(sharded).
  void run_sharded();

  const NamedTensors& parameters() const { return optimizer_.parameters(); }
  /// Of the model with the sharded optimizer.
  NamedTensors sharded_parameters() const;
  std::vector<int64_t> bucket_bytes() const { return reducer_.bytes(); }

 private:
  struct Sharded;

  void prepare(StepMode mode);
  void run(StepMode mode);

  distributed::ProcessGroup& group_;
  TensorInitializer initializer_;
  TinyLlama model_;
  AdamW optimizer_;
  TrainStep step_;
  TokenBatch global_batch_;
  TokenBatch batch_;  // this rank's rows of it
  distributed::GradientReducer reducer_;
  std::unique_ptr<Sharded> sharded_;
};

}  // namespace tinyllama::scaling

// The ways to share a training step that need a model of their own, because it is cut over the
// ranks.
#pragma once

#include <memory>
#include <vector>

#include "benchmarks/scaling/steps.hpp"
#include "model/train_step.hpp"

namespace tinyllama::scaling {

/// A model, cut as the way says, with the same weights at first and the same samples as the plain
/// one.
class SharedStep {
 public:
  SharedStep() = default;
  virtual ~SharedStep() = default;
  SharedStep(const SharedStep&) = delete;
  SharedStep& operator=(const SharedStep&) = delete;

  /// What the mode runs, one of the way's own; communication alone is that of a step before it.
  virtual void run(StepMode mode) = 0;
  /// A whole step on the samples of all ranks.
  virtual void run_all_samples() = 0;
  virtual void clear_gradients() = 0;
  /// Whole on every rank, in the model's order, until clear_gradients() or a step. All ranks have
  /// to call it.
  virtual std::vector<at::Tensor> parameters() = 0;
};

/// Samples of all ranks, and this rank's rows of them.
struct RankSamples {
  const TokenBatch& all;
  const TokenBatch& own;
};

/// The modes of --share's way, in the order of the results; none of ddp, whose modes are the plain
/// model's.
std::vector<StepMode> modes_of(distributed::Share share, int ranks, bool overlap);

/// Null for ddp. Holds references to all of them.
std::unique_ptr<SharedStep> make_shared_step(const ScalingOptions& options, ProcessGroup& group,
                                             const RankSamples& samples);

/// Bytes that a rank needs for it at its most, beside what a plain step of these options holds.
int64_t shared_step_bytes(const ScalingOptions& options, int ranks, c10::DeviceType device);

// Training on one batch stays finite.
inline constexpr double kLearningRate = 1e-3;

/// In the very first AdamW step an update is the sign of its gradient, so that rounding decides
/// where that is nearly 0. From here on it is a smooth function of it, and two ways of computing it
/// can be compared; gradients as usual still move a weight by a good part of the learning rate,
/// which narrow types can hold.
void leave_first_step(AdamW& optimizer);

/// Rows [first, first + count) of a batch.
TokenBatch rows_of(const TokenBatch& all, int64_t first, int64_t count);

}  // namespace tinyllama::scaling

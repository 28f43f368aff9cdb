// The data-parallel form of a training step: each rank has its own samples, all have the same
// weights.
#pragma once

#include <optional>
#include <string>

#include "benchmarks/distributed/gradient_reducer.hpp"
#include "benchmarks/distributed/process_group.hpp"
#include "benchmarks/distributed/sharded_adamw.hpp"
#include "benchmarks/training/model_state.hpp"

namespace tinyllama::training {

/// What has to be the same on all ranks: options that decide what is computed and sent, and the
/// build.
distributed::Agreement agreement_of(const TrainOptions& options);

class DataParallel {
 public:
  /// Holds references to the group and the state.
  DataParallel(const TrainOptions& options, ModelState& state, distributed::ProcessGroup& group);

  int rank() const { return group_.rank(); }
  int ranks() const { return group_.size(); }

  /// Names the step, for whoever loses a rank in it.
  void begin_step(int64_t step);
  /// Around the last backward of a step, whose gradients are summed over the ranks, with those of
  /// the micro-batches before it. Throws RankLostError.
  void begin_last_backward();
  void finish_last_backward();
  void update();
  void clear_gradients();

  struct Agreed {
    double loss = 0;           ///< over the samples of all ranks
    bool interrupted = false;  ///< a signal asked some rank to stop
  };
  /// What the ranks know together after a step, the same on all of them. `loss`: this rank's share
  /// of the mean.
  Agreed agree(double loss);
  /// Empty where all ranks have the same weights, to the bit; else who differs. `when`: a name that
  /// no other call has.
  std::string differing_ranks(const std::string& when);

 private:
  distributed::ProcessGroup& group_;
  ModelState& state_;
  std::optional<distributed::GradientReducer> reducer_;
  std::optional<distributed::ShardedAdamW> sharded_;
};

}  // namespace tinyllama::training

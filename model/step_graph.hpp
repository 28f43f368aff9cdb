// A whole training step, captured once on a GPU and replayed: one launch instead of one a kernel.
#pragma once

#include <functional>

#include "model/train_step.hpp"

namespace tinyllama {

/// Whether libtorch can capture the work of such a device (from 2.11 on, CUDA and ROCm).
bool can_capture(c10::DeviceType device);

class StepGraph {
 public:
  /// Captures TrainStep::run on `batch`, in whose memory further batches have to be put. Steps that
  /// warm libraries up come first; parameters, moments and the count of steps are put back
  /// afterwards. The optimizer's variant must have Switch::graph. Throws c10::Error where the
  /// device cannot capture, or the step does what cannot be captured.
  StepGraph(TrainStep& step, AdamW& optimizer, const TokenBatch& batch);

  /// Enqueues the step. Gradients and loss of the last one are overwritten where they are: they
  /// must not be cleared. Returns the loss, [].
  const at::Tensor& run();

 private:
  AdamW& optimizer_;
  TokenBatch batch_;
  at::Tensor loss_;
  std::function<void()> replay_;
};

}  // namespace tinyllama

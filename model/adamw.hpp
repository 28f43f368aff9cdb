// AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", algorithm 2).
#pragma once

#include <optional>

#include "model/cost.hpp"
#include "model/kernels/kernels.hpp"
#include "model/parameters.hpp"
#include "model/variant.hpp"

namespace tinyllama {

using kernels::AdamWOptions;

class AdamW {
 public:
  AdamW(NamedTensors parameters, const Variant& variant, const AdamWOptions& options = {});

  /// One update of every parameter that has a gradient; moments are in the parameter's type. The
  /// baseline handles parameters one by one with ordinary tensor operations, as
  /// torch.optim.AdamW(foreach=False) does.
  void step();
  /// Sets every gradient to none, so that the next backward allocates it anew.
  void clear_gradients();

  const NamedTensors& parameters() const { return parameters_; }
  /// First and second moments, each [shape of its parameter], named after it.
  const NamedTensors& first_moments() const { return first_moments_; }
  const NamedTensors& second_moments() const { return second_moments_; }
  int64_t steps_done() const { return steps_done_; }
  /// Sets the count of steps, for putting an earlier state back.
  void set_steps_done(int64_t steps);
  /// Whether steps are counted on the device, so that the count goes on when a captured step() is
  /// replayed.
  bool counts_on_device() const { return device_steps_.defined(); }
  /// Call it after a replay of a captured step(), which has changed everything on the device:
  /// counts the step here, too.
  void note_replayed_step() { ++steps_done_; }

 private:
  /// What an update needs of the parameters that have gradients, in lists.
  struct Lists {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> first_moments;
    std::vector<at::Tensor> second_moments;
  };
  Lists with_gradients() const;
  void step_one_by_one(const Lists& lists);
  void step_by_lists(const Lists& lists);
  void step_fused(const Lists& lists);
  void step_by_library(const Lists& lists);
  void step_by_operator(const Lists& lists);
  /// 1 - beta^t.
  double bias_correction(double beta) const;
  /// Counts the step on the device. Returns 1 / sqrt(1 - beta2^t) and learning_rate / (1 -
  /// beta1^t), float64 [2].
  at::Tensor count_on_device();

  NamedTensors parameters_;
  NamedTensors first_moments_;
  NamedTensors second_moments_;
  AdamWOptions options_;
  bool foreach_;
  bool fused_;
  bool library_;
  std::optional<SlotOperator> operator_;
  int64_t steps_done_ = 0;
  // Defined with Switch::graph, because a number of the host would be the same in every replay, and
  // for libtorch's own update, which reads a tensor.
  at::Tensor device_steps_;  // float64 [], of libtorch's update float32
};

/// AdamW over every parameter.
Cost optimizer_cost(const Workload& workload);

}  // namespace tinyllama

// AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", algorithm 2).
#pragma once

#include "model/parameters.hpp"
#include "model/variant.hpp"

namespace tinyllama {

/// Defaults as in torch.optim.AdamW, but for the learning rate, which is the workshop's.
struct AdamWOptions {
  double learning_rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

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

 private:
  /// What an update needs of the parameters that have gradients, in lists.
  struct Lists {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> first_moments;
    std::vector<at::Tensor> second_moments;
  };
  Lists with_gradients() const;
  void step_one_by_one(const Lists& lists) const;
  void step_by_lists(const Lists& lists) const;
  void step_fused(const Lists& lists) const;
  /// 1 - beta^t.
  double bias_correction(double beta) const;

  NamedTensors parameters_;
  NamedTensors first_moments_;
  NamedTensors second_moments_;
  AdamWOptions options_;
  bool foreach_;
  bool fused_;
  int64_t steps_done_ = 0;
};

}  // namespace tinyllama

// Dynamic loss scaling for float16 products, whose small gradients would otherwise flush to zero.
#pragma once

#include "model/adamw.hpp"

namespace tinyllama {

/// The rule of torch.amp.GradScaler: grow the scale after a run of finite steps, halve it and skip
/// the update after one that is not.
class LossScaler {
 public:
  explicit LossScaler(c10::Device device);

  /// loss * scale.
  at::Tensor scale(const at::Tensor& loss) const;
  /// Divides the gradients by the scale, lets the optimizer step if all of them are finite, and
  /// adapts the scale. Returns whether the optimizer stepped.
  bool unscale_and_step(AdamW& optimizer);
  double current_scale() const;

 private:
  at::Tensor scale_;           // float32 scalar
  at::Tensor growth_tracker_;  // int32 scalar: finite steps since the scale last changed
};

}  // namespace tinyllama

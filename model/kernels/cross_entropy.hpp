// Cross-entropy of rows of logits, with the gradient written where the logits were. No autograd: a
// caller that holds the logits (a chunk of them) composes these with the products around them.
#pragma once

#include <ATen/core/Tensor.h>

namespace tinyllama::kernels {

/// logits [n, V] contiguous (f32, f64, bf16, f16), targets [n] int64 -> each row's loss
/// log(sum(exp(logits))) - logits[target], [n], float32 (float64 for float64); 0 where the target
/// is `ignored_target`. The logits become the gradient of each row's loss, softmax(logits) -
/// onehot(target), zeros for ignored rows, computed in float32 and rounded once. Throws
/// c10::IndexError for a target outside [0, V) that is not ignored, c10::ValueError for wrong
/// shapes or types; the logits are then as they were. On a GPU nobody looks at targets before they
/// are used: one outside [0, V) makes loss and gradient of its row NaN.
at::Tensor cross_entropy_rows_(at::Tensor& logits, const at::Tensor& targets,
                               int64_t ignored_target);

/// The losses alone; the logits stay as they are, and may have any strides.
at::Tensor cross_entropy_losses(const at::Tensor& logits, const at::Tensor& targets,
                                int64_t ignored_target);

}  // namespace tinyllama::kernels

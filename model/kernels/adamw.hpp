// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2) over all
// parameters in one pass over memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace tinyllama::kernels {

struct AdamWScalars {
  double learning_rate;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  int64_t step;  ///< that this update is, counted from 1
};

/// For each i, with g = gradients[i], t = step:
///   p *= 1 - learning_rate weight_decay;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2)
///   g^2; p -= learning_rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps).
/// Parameters are all of one type (f32, f64, bf16, f16), dense in memory in any order of
/// dimensions; moments have the parameter's type, shape and strides, gradients its type and shape
/// (other strides cost a copy). Narrow types are computed in float32 and rounded once a tensor. A
/// parameter whose gradient is undefined is left alone. `corrections`, float64 [2] beside the
/// parameters, holds 1 / sqrt(1 - beta2^t) and learning_rate / (1 - beta1^t), and is read when the
/// update runs, which a captured update does again and again; undefined: they come from `scalars`.
/// Throws c10::ValueError, and then nothing was changed.
void adamw_(at::TensorList parameters, at::TensorList gradients, at::TensorList first_moments,
            at::TensorList second_moments, const AdamWScalars& scalars,
            const at::Tensor& corrections = {});

}  // namespace tinyllama::kernels

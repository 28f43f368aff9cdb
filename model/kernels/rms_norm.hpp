// RMSNorm (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019) in one pass over
// memory, alone and with the residual addition before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace tinyllama::kernels {

/// x [..., D], weight [D], one type (f32, f64, bf16, f16) -> weight * x / sqrt(mean(x^2) + eps),
/// shape and type of x. Normalised in at least float32 and rounded to x's type before the scale, as
/// LlamaRMSNorm does. Differentiable in x and weight; keeps x, weight and one value a row.
/// Gradients are bit-identical in each run with the same number of threads. Throws c10::ValueError.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// residual, branch [..., D], weight [D] -> {sum = residual + branch, rms_norm(sum, weight, eps)},
/// both in residual's type, which weight has too; branch has it, or is bf16 or f16 beside a float32
/// residual (autocast). Differentiable in all three; keeps sum, weight and one value a row. The
/// gradient of residual is that of sum, and that of branch is the same in branch's type.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& residual, const at::Tensor& branch,
                                               const at::Tensor& weight, double eps);

}  // namespace tinyllama::kernels

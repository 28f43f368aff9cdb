// SwiGLU's gate (Shazeer, "GLU Variants Improve Transformer", 2020) in one pass.
#pragma once

#include <ATen/core/Tensor.h>

namespace tinyllama::kernels {

/// gate, up [..., F] of one type -> silu(gate) * up, contiguous; narrow types are computed in
/// float32 and rounded once. Both are read in place where rows are contiguous and evenly spaced
/// (such as halves of a [..., 2F] buffer), else copied. Differentiable in both; keeps the inputs
/// alone. Throws c10::ValueError.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// gate_up [..., 2F], gate first -> silu(gate) * up [..., F], contiguous. The gradient is one [...,
/// 2F] tensor. Otherwise as swiglu.
at::Tensor swiglu_merged(const at::Tensor& gate_up);

}  // namespace tinyllama::kernels

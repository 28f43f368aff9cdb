// Rotary position embedding (Su et al., "RoFormer", 2021), rotate-half convention, in one pass.
#pragma once

#include <ATen/core/Tensor.h>

namespace tinyllama::kernels {

/// x [B, S, heads, head_dim], head_dim even, cos and sin [>= S, 1, head_dim] of x's type, both
/// halves of a row alike -> x * cos + rotate_half(x) * sin, contiguous, x's shape and type; narrow
/// types are computed in float32 and rounded once. x may have any strides; only its last dimension
/// being contiguous saves a copy. Differentiable in x (the rotation by the negative angles); keeps
/// the tables alone. Throws c10::ValueError.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace tinyllama::kernels

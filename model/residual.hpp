// The addition of a layer's output to the residual stream.
#pragma once

#include <ATen/TensorOperators.h>

#include "model/component_range.hpp"

namespace tinyllama {

/// stream, branch [B, S, D] -> their sum.
inline at::Tensor add_residual(const at::Tensor& stream, const at::Tensor& branch) {
  const ComponentRange range("residual");
  return stream + branch;
}

}  // namespace tinyllama

// The matrix multiplications of a linear layer: whose they are, and in which width, a variant
// chooses.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/variant.hpp"

namespace tinyllama {

/// How a variant multiplies. Operands and results are matrices of one type; a weight is [out, in].
class Gemm {
 public:
  explicit Gemm(const Variant& variant);
  Gemm(bool tiled, bool wide) : tiled_(tiled), wide_(wide) {}
  bool is_tiled() const { return tiled_; }
  bool is_wide() const { return wide_; }

  /// Whether it is the library's default, as at::linear calls it.
  bool is_default() const { return !tiled_ && !wide_; }

  /// x [T, in], weight [out, in] -> x W^T [T, out].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight) const;
  /// output_gradient [T, out], weight [out, in] -> G W [T, in].
  at::Tensor input_gradient(const at::Tensor& output_gradient, const at::Tensor& weight) const;
  /// output_gradient [T, out], x [T, in] -> G^T x [out, in], stored in the weight's order.
  at::Tensor weight_gradient(const at::Tensor& output_gradient, const at::Tensor& x,
                             const at::Tensor& weight) const;
  /// Adds G^T x to `sum` [out, in], dense in either order and at least float32.
  void add_weight_gradient(at::Tensor& sum, const at::Tensor& output_gradient,
                           const at::Tensor& x) const;

 private:
  /// a [m, k], b [n, k] -> a b^T [m, n].
  at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) const;

  bool tiled_;
  bool wide_;
};

}  // namespace tinyllama

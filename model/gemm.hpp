// The matrix multiplications of a linear layer. The variant chooses who computes them, and in which
// width.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/variant.hpp"

namespace tinyllama {

/// By the library, by the library in float32 where operands are narrower, or in tiles of our own.
enum class GemmPath : uint8_t { library, wide, tiled };

/// How a variant multiplies. Operands and results are matrices of one type; a weight is [out, in].
class Gemm {
 public:
  explicit Gemm(const Variant& variant);
  explicit Gemm(GemmPath path) : path_(path) {}
  GemmPath path() const { return path_; }

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

  GemmPath path_;
};

}  // namespace tinyllama

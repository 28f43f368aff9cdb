#include "model/gemm.hpp"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "model/dtype.hpp"
#include "model/kernels/kernels.hpp"

namespace tinyllama {
namespace {

bool is_narrow(const at::Tensor& tensor) {
  return tensor.element_size() < 4;
}

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.to(at_least_float(tensor.scalar_type()));
}

}  // namespace

Gemm::Gemm(const Variant& variant)
    : path_(variant.has(Switch::tiled_gemm)  ? GemmPath::tiled
            : variant.has(Switch::wide_gemm) ? GemmPath::wide
                                             : GemmPath::library) {}

at::Tensor Gemm::multiply(const at::Tensor& a, const at::Tensor& b) const {
  if (path_ == GemmPath::tiled) return kernels::gemm(a, b);
  if (path_ == GemmPath::wide && is_narrow(a))
    return multiply(widened(a), widened(b)).to(a.scalar_type());
  return at::mm(a, b.t());
}

at::Tensor Gemm::forward(const at::Tensor& x, const at::Tensor& weight) const {
  return multiply(x, weight);
}

at::Tensor Gemm::input_gradient(const at::Tensor& output_gradient, const at::Tensor& weight) const {
  return multiply(output_gradient, weight.t());
}

at::Tensor Gemm::weight_gradient(const at::Tensor& output_gradient, const at::Tensor& x,
                                 const at::Tensor& weight) const {
  // A gradient in another order than its parameter's would be copied when it is stored.
  if (!weight.is_contiguous()) return multiply(x.t(), output_gradient.t()).t();
  return multiply(output_gradient.t(), x.t());
}

void Gemm::add_weight_gradient(at::Tensor& sum, const at::Tensor& output_gradient,
                               const at::Tensor& x) const {
  const bool narrow = sum.scalar_type() != x.scalar_type();
  if (path_ == GemmPath::tiled) {
    if (sum.is_contiguous()) {
      kernels::add_gemm_(sum, output_gradient.t(), x.t());
    } else {
      kernels::add_gemm_(sum.t(), x.t(), output_gradient.t());
    }
  } else if (narrow && path_ == GemmPath::library) {
    // Narrow results are added up wider than they are stored.
    sum.add_(multiply(output_gradient.t(), x.t()));
  } else {
    at::addmm_out(sum, sum, widened(output_gradient).t(), widened(x));
  }
}

}  // namespace tinyllama

#include "model/gemm.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "model/dtype.hpp"

namespace tinyllama {
namespace {

// oneDNN's inner product, which libtorch keeps for torch.compile and gives no C++ function for.
std::optional<c10::OperatorHandle> onednn_gemm() {
  return c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
}

bool is_narrow(const at::Tensor& tensor) {
  return tensor.element_size() < 4;
}

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.to(at_least_float(tensor.scalar_type()));
}

}  // namespace

bool has_onednn_gemm() {
  return onednn_gemm().has_value();
}

// Called by name and with boxed arguments, because its C++ signature differs between versions.
at::Tensor multiply_by_onednn(const at::Tensor& a, const at::Tensor& b) {
  // libtorch makes the first operand contiguous (mkldnn_linear_pointwise,
  // native/mkldnn/Linear.cpp).
  if (a.is_meta()) {
    const at::Tensor first = a.contiguous();
    return at::empty({a.size(0), b.size(0)}, a.options());
  }
  static const auto operation = onednn_gemm();
  TORCH_CHECK(operation, "onednn: this libtorch has no mkldnn::_linear_pointwise");
  torch::jit::Stack stack;
  torch::jit::push(stack, a, b, c10::IValue(), "none", c10::List<std::optional<at::Scalar>>(), "");
  operation->callBoxed(stack);
  return torch::jit::pop(stack).toTensor();
}

Gemm::Gemm(const Variant& variant)
    : onednn_(variant.has(Switch::onednn)), wide_(variant.has(Switch::wide_gemm)) {}

at::Tensor Gemm::multiply(const at::Tensor& a, const at::Tensor& b) const {
  if (wide_ && is_narrow(a)) return multiply(widened(a), widened(b)).to(a.scalar_type());
  if (onednn_ && a.scalar_type() == c10::ScalarType::Float) return multiply_by_onednn(a, b);
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
  if (onednn_ && (wide_ || !narrow)) {
    sum.add_(multiply(widened(output_gradient).t(), widened(x).t()));
  } else if (narrow && !wide_) {
    // Narrow results are added up wider than they are stored.
    sum.add_(multiply(output_gradient.t(), x.t()));
  } else {
    at::addmm_out(sum, sum, widened(output_gradient).t(), widened(x));
  }
}

}  // namespace tinyllama

#include "model/gemm.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>

#include "model/dtype.hpp"

namespace at::native {

/// result [m, n] = beta result + alpha a [m, k] b [k, n] by oneDNN, transposed operands as they
/// are. libtorch exports it; its packages leave out the header, ATen/native/mkldnn/Matmul.h.
[[gnu::weak]] void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta,
                                 float alpha);

}  // namespace at::native

namespace tinyllama {
namespace {

// Operators that libtorch keeps for torch.compile and gives no C++ function for: called by name and
// with boxed arguments, because their C++ signatures differ between versions.
std::optional<c10::OperatorHandle> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchema({name, ""});
}

std::optional<c10::OperatorHandle> onednn_linear() {
  return find_operator("mkldnn::_linear_pointwise");
}

// What an operator without arguments says of the processor.
bool says_yes(const char* name) {
  const auto is_supported = find_operator(name);
  if (!is_supported) return false;
  torch::jit::Stack stack;
  is_supported->callBoxed(stack);
  return torch::jit::pop(stack).toBool();
}

bool has_bf16_code() {
  static const bool has = says_yes("mkldnn::_is_mkldnn_bf16_supported");
  return has;
}

// It refuses every type on a processor that it has no bfloat16 code for.
bool has_mkldnn_matmul() {
  return at::native::mkldnn_matmul != nullptr && has_bf16_code();
}

void onednn_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& result, float beta) {
  RECORD_FUNCTION("tinyllama::onednn_matmul", (std::vector<c10::IValue>{a, b}));
  at::native::mkldnn_matmul(a, b.t(), result, beta, /*alpha=*/1);
}

// Adds a [m, k] x b [n, k]^T to `sum`.
void add_by_onednn(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (!has_mkldnn_matmul()) {
    sum.add_(multiply_by_onednn(a, b));
  } else if (!sum.is_meta()) {
    onednn_matmul(a, b, sum, /*beta=*/1);
  }
}

bool is_narrow(const at::Tensor& tensor) {
  return tensor.element_size() < 4;
}

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.to(at_least_float(tensor.scalar_type()));
}

}  // namespace

bool has_onednn_gemm(c10::ScalarType type) {
  if (!onednn_linear()) return false;
  if (type == c10::ScalarType::BFloat16) return has_bf16_code();
  if (type == c10::ScalarType::Half) return says_yes("mkldnn::_is_mkldnn_fp16_supported");
  return type == c10::ScalarType::Float;
}

at::Tensor multiply_by_onednn(const at::Tensor& a, const at::Tensor& b) {
  // The linear layer copies a transposed `a`, which takes half as long as the multiplication
  // itself (mkldnn_linear_pointwise, native/mkldnn/Linear.cpp).
  const bool copies = !a.is_contiguous() && !has_mkldnn_matmul();
  if (a.is_meta()) {
    const at::Tensor first = copies ? a.contiguous() : a;
    return at::empty({a.size(0), b.size(0)}, a.options());
  }
  if (!a.is_contiguous() && !copies) {
    at::Tensor result = at::empty({a.size(0), b.size(0)}, a.options());
    onednn_matmul(a, b, result, /*beta=*/0);
    return result;
  }
  static const auto operation = onednn_linear();
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
    add_by_onednn(sum, widened(output_gradient).t(), widened(x).t());
  } else if (narrow && !wide_) {
    // Narrow results are added up wider than they are stored.
    sum.add_(multiply(output_gradient.t(), x.t()));
  } else {
    at::addmm_out(sum, sum, widened(output_gradient).t(), widened(x));
  }
}

}  // namespace tinyllama

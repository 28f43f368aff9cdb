#include "model/kernels/kernels.hpp"

#include <ATen/TensorUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>

#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Rows of contiguous elements, `stride` elements apart.
struct EvenRows {
  at::Tensor tensor;
  int64_t stride = 0;
};

int64_t row_count(const at::Tensor& tensor) {
  return tensor.size(-1) == 0 ? 0 : tensor.numel() / tensor.size(-1);
}

EvenRows even_rows(const at::Tensor& tensor) {
  const int64_t width = tensor.size(-1);
  const std::array<int64_t, 2> matrix = {row_count(tensor), width};
  const auto strides =
      at::detail::computeStride(tensor.sizes(), tensor.strides(), at::IntArrayRef(matrix));
  if (strides && (width == 1 || strides->back() == 1)) return {tensor, strides->front()};
  return {tensor.contiguous(), width};
}

/// Where gate and up lie. Without `up`, gate is a [..., 2F] buffer of both, whose rows hold the
/// up half F elements behind the gate's: read in place, without operators for the halves.
struct Inputs {
  Inputs(const at::Tensor& gate_or_both, const at::Tensor& up_or_none)
      : gate(even_rows(gate_or_both)),
        up(up_or_none.defined() ? even_rows(up_or_none) : gate),
        rows(row_count(gate_or_both)),
        width(up_or_none.defined() ? gate_or_both.size(-1) : gate_or_both.size(-1) / 2),
        up_offset(up_or_none.defined() ? 0 : width) {}

  EvenRows gate, up;
  int64_t rows, width;
  int64_t up_offset;
};

/// Of separate tensors, or of one buffer where up is undefined.
struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate,
                            const std::optional<at::Tensor>& separate_up) {
    const at::Tensor up = separate_up.value_or(at::Tensor());
    RECORD_FUNCTION(up.defined() ? "tinyllama::swiglu" : "tinyllama::swiglu_merged",
                    c10::ArrayRef<const c10::IValue>{});
    ctx->save_for_backward({gate, up});
    auto shape = gate.sizes().vec();
    if (!up.defined()) shape.back() /= 2;
    at::Tensor out = uninitialized(shape, gate.scalar_type(), gate.device());
    const Inputs in(gate, up);
    if (out.is_meta()) return out;
    with_range_kernels(out.scalar_type(), [&]<class T>(const RangeKernelsOf<T>& kernels) {
      const SwigluRows<T> rows{const_data<T>(in.gate.tensor),
                               in.gate.stride,
                               const_data<T>(in.up.tensor) + in.up_offset,
                               in.up.stride,
                               data<T>(out),
                               in.width};
      run_rows(out, in.rows, in.width, &GpuKernelsOf<T>::swiglu, kernels.swiglu, rows);
    });
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& output_gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const bool is_merged = !saved[1].defined();
    RECORD_FUNCTION(is_merged ? "tinyllama::swiglu_merged_backward" : "tinyllama::swiglu_backward",
                    c10::ArrayRef<const c10::IValue>{});
    const at::Tensor gate_gradient = uninitialized_as(saved[0]);
    const at::Tensor up_gradient = is_merged ? gate_gradient : uninitialized_as(saved[1]);
    const Inputs in(saved[0], saved[1]);
    const at::Tensor gradient = output_gradients[0].contiguous();
    if (!gradient.is_meta()) {
      with_range_kernels(gradient.scalar_type(), [&]<class T>(const RangeKernelsOf<T>& kernels) {
        const SwigluGradientRows<T> rows{const_data<T>(gradient),
                                         const_data<T>(in.gate.tensor),
                                         in.gate.stride,
                                         const_data<T>(in.up.tensor) + in.up_offset,
                                         in.up.stride,
                                         data<T>(gate_gradient),
                                         data<T>(up_gradient) + in.up_offset,
                                         in.width + in.up_offset,
                                         in.width};
        run_rows(gradient, in.rows, in.width, &GpuKernelsOf<T>::swiglu_gradient,
                 kernels.swiglu_gradient, rows);
      });
    }
    return {gate_gradient, is_merged ? at::Tensor() : up_gradient};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check_device(gate, "gate");
  check_device(up, "up");
  check_type(up, "up", gate, "gate");
  TORCH_CHECK_VALUE(gate.dim() >= 1 && up.sizes() == gate.sizes(), "gate has shape ", gate.sizes(),
                    " and up ", up.sizes(), ": they must be alike, of at least one dimension");
  return SwigluFunction::apply(gate, std::optional(up));
}

at::Tensor swiglu_merged(const at::Tensor& gate_up) {
  check_device(gate_up, "gate_up");
  TORCH_CHECK_VALUE(gate_up.dim() >= 1 && gate_up.size(-1) % 2 == 0, "gate_up has shape ",
                    gate_up.sizes(), ": its last dimension must be even");
  return SwigluFunction::apply(gate_up, std::optional<at::Tensor>());
}

}  // namespace tinyllama::kernels

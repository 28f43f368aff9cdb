#include "model/kernels/kernels.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "model/kernels/cpu_launch.hpp"
#include "model/kernels/cpu_threads.hpp"

namespace tinyllama::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Rows of contiguous elements, `stride` elements apart.
struct EvenRows {
  at::Tensor tensor;
  int64_t stride = 0;
};

bool has_even_rows(const at::Tensor& tensor) {
  if (tensor.size(-1) > 1 && tensor.stride(-1) != 1) return false;
  for (int64_t i = tensor.dim() - 3; i >= 0; --i) {
    if (tensor.size(i) > 1 && tensor.stride(i) != tensor.stride(i + 1) * tensor.size(i + 1))
      return false;
  }
  return true;
}

EvenRows even_rows(const at::Tensor& tensor) {
  const at::Tensor rows = has_even_rows(tensor) ? tensor : tensor.contiguous();
  return {rows, rows.dim() > 1 ? rows.stride(-2) : 0};
}

int64_t row_count(const at::Tensor& tensor) {
  return tensor.size(-1) == 0 ? 0 : tensor.numel() / tensor.size(-1);
}

/// The halves of a [..., 2F] buffer, without operators: `upper` begins F elements behind its rows.
struct Inputs {
  EvenRows gate, up;
  int64_t up_offset = 0;
  int64_t rows = 0, width = 0;
};

Inputs inputs_of(const at::Tensor& gate, const at::Tensor& up) {
  return {even_rows(gate), even_rows(up), 0, row_count(gate), gate.size(-1)};
}
Inputs inputs_of(const at::Tensor& gate_up) {
  const EvenRows rows = even_rows(gate_up);
  const int64_t width = gate_up.size(-1) / 2;
  return {rows, rows, width, row_count(gate_up), width};
}

void run(const Inputs& in, const at::Tensor& out) {
  if (out.is_meta()) return;
  with_range_kernels(out.scalar_type(), [&]<class T>(const RangeKernelsOf<T>& kernels) {
    const SwigluRows<T> rows{const_data<T>(in.gate.tensor),
                             in.gate.stride,
                             const_data<T>(in.up.tensor) + in.up_offset,
                             in.up.stride,
                             data<T>(out),
                             in.width};
    if (out.is_cuda()) {
      return launch_on_gpu<GpuKernelsOf<T>>(
          out, [&](const auto& gpu, GpuStream stream) { gpu.swiglu(rows, in.rows, stream); });
    }
    for_rows(in.rows, in.width,
             [&](int64_t begin, int64_t end) { kernels.swiglu(rows, begin, end); });
  });
}

/// `up_gradient` begins `offset` elements into its tensor.
void run_backward(const Inputs& in, const at::Tensor& gradient, const at::Tensor& gate_gradient,
                  const at::Tensor& up_gradient, int64_t offset) {
  if (gradient.is_meta()) return;
  with_range_kernels(gradient.scalar_type(), [&]<class T>(const RangeKernelsOf<T>& kernels) {
    const SwigluGradientRows<T> rows{const_data<T>(gradient),
                                     const_data<T>(in.gate.tensor),
                                     in.gate.stride,
                                     const_data<T>(in.up.tensor) + in.up_offset,
                                     in.up.stride,
                                     data<T>(gate_gradient),
                                     data<T>(up_gradient) + offset,
                                     in.width + offset,
                                     in.width};
    if (gradient.is_cuda()) {
      return launch_on_gpu<GpuKernelsOf<T>>(gradient, [&](const auto& gpu, GpuStream stream) {
        gpu.swiglu_gradient(rows, in.rows, stream);
      });
    }
    for_rows(in.rows, in.width,
             [&](int64_t begin, int64_t end) { kernels.swiglu_gradient(rows, begin, end); });
  });
}

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    TINYLLAMA_RECORD_KERNEL("swiglu");
    at::Tensor out = uninitialized_as(gate);
    run(inputs_of(gate, up), out);
    ctx->save_for_backward({gate, up});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& output_gradients) {
    TINYLLAMA_RECORD_KERNEL("swiglu_backward");
    const variable_list saved = ctx->get_saved_variables();
    at::Tensor gate_gradient = uninitialized_as(saved[0]);
    at::Tensor up_gradient = uninitialized_as(saved[1]);
    run_backward(inputs_of(saved[0], saved[1]), output_gradients[0].contiguous(), gate_gradient,
                 up_gradient, 0);
    return {gate_gradient, up_gradient};
  }
};

struct MergedSwigluFunction : torch::autograd::Function<MergedSwigluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up) {
    TINYLLAMA_RECORD_KERNEL("swiglu_merged");
    auto shape = gate_up.sizes().vec();
    shape.back() /= 2;
    at::Tensor out = uninitialized(shape, gate_up.scalar_type(), gate_up.device());
    run(inputs_of(gate_up), out);
    ctx->save_for_backward({gate_up});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& output_gradients) {
    TINYLLAMA_RECORD_KERNEL("swiglu_merged_backward");
    const variable_list saved = ctx->get_saved_variables();
    at::Tensor gradient = uninitialized_as(saved[0]);
    const Inputs in = inputs_of(saved[0]);
    run_backward(in, output_gradients[0].contiguous(), gradient, gradient, in.width);
    return {gradient};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check_device(gate, "gate");
  check_device(up, "up");
  check_type(up, "up", gate, "gate");
  TORCH_CHECK_VALUE(gate.dim() >= 1 && up.sizes() == gate.sizes(), "gate has shape ", gate.sizes(),
                    " and up ", up.sizes(), ": they must be alike, of at least one dimension");
  return SwigluFunction::apply(gate, up);
}

at::Tensor swiglu_merged(const at::Tensor& gate_up) {
  check_device(gate_up, "gate_up");
  TORCH_CHECK_VALUE(gate_up.dim() >= 1 && gate_up.size(-1) % 2 == 0, "gate_up has shape ",
                    gate_up.sizes(), ": its last dimension must be even");
  return MergedSwigluFunction::apply(gate_up);
}

}  // namespace tinyllama::kernels

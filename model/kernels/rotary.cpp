#include "model/kernels/kernels.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor turned(const at::Tensor& given, const at::Tensor& cos, const at::Tensor& sin,
                  bool backwards) {
  const at::Tensor x = given.stride(3) == 1 ? given : given.contiguous();
  at::Tensor out = uninitialized_as(x);
  if (x.is_meta()) return out;
  with_range_kernels(x.scalar_type(), [&]<class T>(const RangeKernelsOf<T>& kernels) {
    const RotaryTokens<T> tokens{const_data<T>(x),   x.stride(0),        x.stride(1),  x.stride(2),
                                 const_data<T>(cos), const_data<T>(sin), data<T>(out), x.size(1),
                                 x.size(2),          x.size(3),          backwards};
    run_rows(x, x.size(0) * x.size(1), x.size(2) * x.size(3), &GpuKernelsOf<T>::rotary,
             kernels.rotary, tokens);
  });
  return out;
}

struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin) {
    TINYLLAMA_RECORD_KERNEL("rotate");
    const at::Tensor cos_rows = cos.contiguous();
    const at::Tensor sin_rows = sin.contiguous();
    ctx->save_for_backward({cos_rows, sin_rows});
    return turned(x, cos_rows, sin_rows, /*backwards=*/false);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& output_gradients) {
    TINYLLAMA_RECORD_KERNEL("rotate_backward");
    const variable_list saved = ctx->get_saved_variables();
    return {turned(output_gradients[0], saved[0], saved[1], /*backwards=*/true), {}, {}};
  }
};

void check_table(const at::Tensor& table, const char* name, const at::Tensor& x) {
  check_device(table, name);
  check_type(table, name, x, "x");
  TORCH_CHECK_VALUE(table.dim() == 3 && table.size(1) == 1 && table.size(2) == x.size(3), name,
                    " has shape ", table.sizes(), ": it must be [positions, 1, ", x.size(3), "]");
  TORCH_CHECK_VALUE(x.size(1) <= table.size(0), "sequence length ", x.size(1), ": ", name,
                    " was made for at most ", table.size(0), " positions");
}

}  // namespace

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  check_device(x, "x");
  TORCH_CHECK_VALUE(x.dim() == 4 && x.size(3) % 2 == 0, "x has shape ", x.sizes(),
                    ": it must be [B, S, heads, head_dim], head_dim even");
  check_table(cos, "cos", x);
  check_table(sin, "sin", x);
  return RotaryFunction::apply(x, cos, sin);
}

}  // namespace tinyllama::kernels

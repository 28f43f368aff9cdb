#include "model/kernels/kernels.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_norm(const at::Tensor& x, const at::Tensor& weight, const char* name) {
  check_device(x, name);
  check_device(weight, "weight");
  check_type(weight, "weight", x, name);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) > 0, name, " has shape ", x.sizes(),
                    ": its last dimension must have at least one element");
  TORCH_CHECK_VALUE(weight.dim() == 1 && weight.size(0) == x.size(-1), "weight has shape ",
                    weight.sizes(), ": it must be [", x.size(-1), "], the last dimension of ",
                    name);
}

/// body(kernels, T{}, Branch{}): of the CPU, for rows of T and a branch of its type, or narrower
/// beside a float32 residual.
template <class Body>
void with_norm_kernels(c10::ScalarType type, c10::ScalarType branch_type, const Body& body) {
  if (branch_type == type) {
    with_range_kernels(type,
                       [&]<class T>(const RangeKernelsOf<T>& kernels) { body(kernels, T{}, T{}); });
  } else if (branch_type == c10::ScalarType::BFloat16) {
    body(range_kernels().f32_with_bf16, float{}, Bfloat16{});
  } else {
    body(range_kernels().f32_with_f16, float{}, Float16{});
  }
}

// One value a row.
at::Tensor empty_inverse_rms(const at::Tensor& x) {
  return uninitialized({x.numel() / x.size(-1)}, at_least_float(x.scalar_type()), x.device());
}

struct NormGradients {
  at::Tensor x;
  at::Tensor branch;  // x in the branch's type
  at::Tensor weight;
};

/// `sum_gradient` may be undefined: nothing to add.
NormGradients gradients(const at::Tensor& gradient, const at::Tensor& sum_gradient,
                        const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& inverse_rms, c10::ScalarType branch_type) {
  const auto type = x.scalar_type();
  const bool mixed = branch_type != type;
  const int64_t width = x.size(-1), rows = inverse_rms.numel();
  const bool on_gpu = is_on_gpu(x);
  const int64_t parts = on_gpu ? gpu_norm_parts(rows) : part_count(rows, width);
  const at::Tensor partial = uninitialized({parts, width}, at_least_float(type), x.device());
  NormGradients result{uninitialized_as(x), {}, uninitialized_as(weight)};
  result.branch = mixed ? uninitialized(x.sizes(), branch_type, x.device()) : result.x;
  if (x.is_meta()) return result;
  with_norm_kernels(type, branch_type, [&]<class T, class Branch>(const auto& kernels, T, Branch) {
    using Compute = ComputeType<T>;
    RmsNormGradientRows<T, Branch> all{
        const_data<T>(gradient),
        sum_gradient.defined() ? const_data<T>(sum_gradient) : nullptr,
        const_data<T>(x),
        const_data<T>(weight),
        const_data<Compute>(inverse_rms),
        data<T>(result.x),
        mixed ? data<Branch>(result.branch) : nullptr,
        data<Compute>(partial),
        width};
    if (on_gpu) {
      return launch_on_gpu<GpuNormKernels<T, Branch>>(x, [&](const auto& gpu, GpuStream stream) {
        gpu.rms_norm_gradient(all, data<T>(result.weight), rows, stream);
      });
    }
    for_parts(parts, rows, [&](int64_t part, int64_t begin, int64_t end) {
      auto of_part = all;
      of_part.weight_gradient += part * width;
      std::fill_n(of_part.weight_gradient, width, Compute{0});
      kernels.rms_norm_gradient(of_part, begin, end);
    });
  });
  if (on_gpu) return result;
  with_range_kernels(type, [&]<class T>(const RangeKernelsOf<T>& kernels) {
    kernels.sum_of_rows({const_data<ComputeType<T>>(partial), data<T>(result.weight), parts, width},
                        0, width);
  });
  return result;
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const at::Tensor rows = x.contiguous();
    const at::Tensor scale = weight.contiguous();
    RECORD_FUNCTION("tinyllama::rms_norm", (std::vector<c10::IValue>{rows, scale, eps}));
    at::Tensor out = uninitialized_as(rows);
    const at::Tensor inverse_rms = empty_inverse_rms(rows);
    ctx->save_for_backward({rows, scale, inverse_rms});
    if (rows.is_meta()) return out;
    with_range_kernels(rows.scalar_type(), [&]<class T>(const RangeKernelsOf<T>& kernels) {
      const RmsNormRows<T> all{const_data<T>(rows), const_data<T>(scale),
                               data<T>(out),        data<ComputeType<T>>(inverse_rms),
                               rows.size(-1),       eps};
      run_rows(rows, inverse_rms.numel(), all.width, &GpuKernelsOf<T>::rms_norm, kernels.rms_norm,
               all);
    });
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& output_gradients) {
    const variable_list saved = ctx->get_saved_variables();
    RECORD_FUNCTION("tinyllama::rms_norm_backward",
                    (std::vector<c10::IValue>{output_gradients[0], saved[0], saved[1]}));
    NormGradients result = gradients(output_gradients[0].contiguous(), {}, saved[0], saved[1],
                                     saved[2], saved[0].scalar_type());
    return {result.x, result.weight, {}};
  }
};

struct AddRmsNormFunction : torch::autograd::Function<AddRmsNormFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& residual,
                               const at::Tensor& branch, const at::Tensor& weight, double eps) {
    // What nobody differentiates must not become a tensor of zeros.
    ctx->set_materialize_grads(false);
    const at::Tensor scale = weight.contiguous();
    const at::Tensor stream = residual.contiguous(), added = branch.contiguous();
    RECORD_FUNCTION("tinyllama::add_rms_norm",
                    (std::vector<c10::IValue>{stream, added, scale, eps}));
    const at::Tensor sum = uninitialized_as(stream), out = uninitialized_as(stream);
    const at::Tensor inverse_rms = empty_inverse_rms(stream);
    ctx->save_for_backward({sum, scale, inverse_rms});
    ctx->saved_data["branch_type"] = static_cast<int64_t>(branch.scalar_type());
    if (stream.is_meta()) return {sum, out};
    with_norm_kernels(stream.scalar_type(), added.scalar_type(),
                      [&]<class T, class Branch>(const auto& kernels, T, Branch) {
                        const AddRmsNormRows<T, Branch> all{
                            const_data<T>(stream), const_data<Branch>(added),
                            const_data<T>(scale),  data<T>(sum),
                            data<T>(out),          data<ComputeType<T>>(inverse_rms),
                            stream.size(-1),       eps};
                        run_rows(stream, inverse_rms.numel(), all.width,
                                 &GpuNormKernels<T, Branch>::add_rms_norm, kernels.add_rms_norm,
                                 all);
                      });
    return {sum, out};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& output_gradients) {
    const at::Tensor& of_sum = output_gradients[0];
    const auto branch_type = static_cast<c10::ScalarType>(ctx->saved_data["branch_type"].toInt());
    if (!output_gradients[1].defined()) {
      if (!of_sum.defined()) return {{}, {}, {}, {}};
      return {of_sum, of_sum.to(branch_type), {}, {}};
    }
    TINYLLAMA_RECORD_KERNEL("add_rms_norm_backward");
    const variable_list saved = ctx->get_saved_variables();
    NormGradients result = gradients(output_gradients[1].contiguous(),
                                     of_sum.defined() ? of_sum.contiguous() : at::Tensor(),
                                     saved[0], saved[1], saved[2], branch_type);
    return {result.x, result.branch, result.weight, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_norm(x, weight, "x");
  return RmsNormFunction::apply(x, weight, eps);
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& residual, const at::Tensor& branch,
                                               const at::Tensor& weight, double eps) {
  check_norm(residual, weight, "residual");
  check_device(branch, "branch");
  check_same_device(branch, "branch", residual, "residual");
  TORCH_CHECK_VALUE(branch.sizes() == residual.sizes(), "branch has shape ", branch.sizes(),
                    ": it must be ", residual.sizes(), ", as residual is");
  const auto type = residual.scalar_type();
  const auto branch_type = branch.scalar_type();
  const bool narrow =
      branch_type == c10::ScalarType::BFloat16 || branch_type == c10::ScalarType::Half;
  TORCH_CHECK_VALUE(
      branch_type == type || (narrow && type == c10::ScalarType::Float), "branch is ",
      c10::toString(branch_type), " and residual ", c10::toString(type),
      ": they must have one type, or branch be bfloat16 or float16 and residual float32");
  const variable_list outputs = AddRmsNormFunction::apply(residual, branch, weight, eps);
  return {outputs[0], outputs[1]};
}

}  // namespace tinyllama::kernels

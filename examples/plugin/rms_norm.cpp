// RMSNorm for CPUs as an operator of its own, forward and backward, in float32, bfloat16 and
// float16. An ordinary PyTorch extension: torch.ops.load_library takes the same file.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

namespace {

// x [..., D], weight [D] -> weight * x / sqrt(mean(x^2) + eps). As LlamaRMSNorm does, narrow types
// are normalised in float32 and rounded before the scale.
at::Tensor rms_norm(const at::Tensor& x_, const at::Tensor& weight_, double eps) {
  const at::Tensor x = x_.contiguous();
  const at::Tensor weight = weight_.contiguous();
  const int64_t columns = x.size(-1);
  const int64_t rows = x.numel() / columns;
  at::Tensor output = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "rms_norm", [&] {
    using Wide = at::opmath_type<scalar_t>;
    const scalar_t* const in = x.const_data_ptr<scalar_t>();
    const scalar_t* const scale = weight.const_data_ptr<scalar_t>();
    scalar_t* const out = output.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const scalar_t* const a = in + row * columns;
        Wide sum = 0;
        for (int64_t i = 0; i < columns; ++i) sum += Wide(a[i]) * Wide(a[i]);
        const Wide inverse = 1 / std::sqrt(sum / Wide(columns) + Wide(eps));
        for (int64_t i = 0; i < columns; ++i)
          out[row * columns + i] = scale[i] * scalar_t(Wide(a[i]) * inverse);
      }
    });
  });
  return output;
}

// The suite finds the arguments by their names: gradient is that of the output.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& gradient_,
                                                     const at::Tensor& x_,
                                                     const at::Tensor& weight_, double eps) {
  const at::Tensor gradient = gradient_.contiguous();
  const at::Tensor x = x_.contiguous();
  const at::Tensor weight = weight_.contiguous();
  const int64_t columns = x.size(-1);
  const int64_t rows = x.numel() / columns;
  at::Tensor x_gradient = at::empty_like(x);
  at::Tensor weight_gradient;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "rms_norm", [&] {
    using Wide = at::opmath_type<scalar_t>;
    const scalar_t* const g = gradient.const_data_ptr<scalar_t>();
    const scalar_t* const in = x.const_data_ptr<scalar_t>();
    const scalar_t* const scale = weight.const_data_ptr<scalar_t>();
    scalar_t* const out = x_gradient.mutable_data_ptr<scalar_t>();
    // A sum of its own for each thread, so that no two write to one place.
    const int64_t threads = at::get_num_threads();
    at::Tensor sums =
        at::zeros({threads, columns}, x.options().dtype(c10::CppTypeToScalarType<Wide>()));
    Wide* const all_sums = sums.mutable_data_ptr<Wide>();
    at::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
      Wide* const sum = all_sums + at::get_thread_num() * columns;
      for (int64_t row = begin; row < end; ++row) {
        const scalar_t* const a = in + row * columns;
        const scalar_t* const d = g + row * columns;
        Wide squares = 0;
        Wide dot = 0;
        for (int64_t i = 0; i < columns; ++i) {
          squares += Wide(a[i]) * Wide(a[i]);
          dot += Wide(d[i]) * Wide(scale[i]) * Wide(a[i]);
        }
        const Wide inverse = 1 / std::sqrt(squares / Wide(columns) + Wide(eps));
        const Wide correction = dot * inverse * inverse * inverse / Wide(columns);
        for (int64_t i = 0; i < columns; ++i) {
          out[row * columns + i] =
              scalar_t(Wide(d[i]) * Wide(scale[i]) * inverse - Wide(a[i]) * correction);
          sum[i] += Wide(d[i]) * Wide(scalar_t(Wide(a[i]) * inverse));
        }
      }
    });
    weight_gradient = sums.sum(0).to(weight.scalar_type());
  });
  return {x_gradient, weight_gradient};
}

// What memory is predicted with: shapes without data. Optional.
at::Tensor rms_norm_meta(const at::Tensor& x, const at::Tensor& /*weight*/, double /*eps*/) {
  return at::empty(x.sizes(), x.options());
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor& /*gradient*/,
                                                          const at::Tensor& x,
                                                          const at::Tensor& weight,
                                                          double /*eps*/) {
  // The sums of the threads, which are gone when it returns.
  const at::Tensor sums = at::empty({at::get_num_threads(), x.size(-1)},
                                    x.options().dtype(at::toOpMathType(x.scalar_type())));
  return {at::empty(x.sizes(), x.options()), at::empty_like(weight)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(my, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def(
      "rms_norm_backward(Tensor gradient, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(my, CPU, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("rms_norm_backward", rms_norm_backward);
}

TORCH_LIBRARY_IMPL(my, Meta, library) {
  library.impl("rms_norm", rms_norm_meta);
  library.impl("rms_norm_backward", rms_norm_backward_meta);
}

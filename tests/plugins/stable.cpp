// RMSNorm over libtorch's stable ABI, which no header of ATen's takes part in.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cmath>
#include <tuple>

namespace {

using torch::stable::Tensor;

// float32 and contiguous: enough to show that such a library is found and proved.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  Tensor output = torch::stable::empty_like(x);
  const int64_t columns = x.size(-1);
  const auto* in = static_cast<const float*>(x.data_ptr());
  const auto* scale = static_cast<const float*>(weight.data_ptr());
  auto* out = static_cast<float*>(output.data_ptr());
  for (int64_t row = 0; row < x.numel() / columns; ++row, in += columns, out += columns) {
    float squares = 0;
    for (int64_t i = 0; i < columns; ++i) squares += in[i] * in[i];
    const float inverse =
        1 / std::sqrt(squares / static_cast<float>(columns) + static_cast<float>(eps));
    for (int64_t i = 0; i < columns; ++i) out[i] = scale[i] * (in[i] * inverse);
  }
  return output;
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& gradient, const Tensor& x,
                                             const Tensor& weight, double eps) {
  Tensor x_gradient = torch::stable::empty_like(x);
  Tensor weight_gradient = torch::stable::empty_like(weight);
  const int64_t columns = x.size(-1);
  const auto* g = static_cast<const float*>(gradient.data_ptr());
  const auto* in = static_cast<const float*>(x.data_ptr());
  const auto* scale = static_cast<const float*>(weight.data_ptr());
  auto* out = static_cast<float*>(x_gradient.data_ptr());
  auto* sum = static_cast<float*>(weight_gradient.data_ptr());
  for (int64_t i = 0; i < columns; ++i) sum[i] = 0;
  for (int64_t row = 0; row < x.numel() / columns; ++row) {
    float squares = 0;
    float dot = 0;
    for (int64_t i = 0; i < columns; ++i) {
      squares += in[i] * in[i];
      dot += g[i] * scale[i] * in[i];
    }
    const auto n = static_cast<float>(columns);
    const float inverse = 1 / std::sqrt(squares / n + static_cast<float>(eps));
    const float correction = dot * inverse * inverse * inverse / n;
    for (int64_t i = 0; i < columns; ++i) {
      out[i] = g[i] * scale[i] * inverse - in[i] * correction;
      sum[i] += g[i] * in[i] * inverse;
    }
    g += columns;
    in += columns;
    out += columns;
  }
  return {x_gradient, weight_gradient};
}

}  // namespace

STABLE_TORCH_LIBRARY(stable, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def(
      "rms_norm_backward(Tensor gradient, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(stable, CPU, library) {
  library.impl("rms_norm", TORCH_BOX(&rms_norm));
  library.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward));
}

// Kernels with the faults of the workshop's debugging exercise, and one without, for
// scripts/exercise 7 and 8. Each operator has a namespace that says what is wrong with it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <tuple>

namespace {

using at::Tensor;

/// Rows of float32, [rows, columns].
struct Rows {
  explicit Rows(const Tensor& tensor)
      : whole(tensor.contiguous()),
        data(whole.const_data_ptr<float>()),
        columns(whole.size(-1)),
        rows(whole.numel() / columns) {}
  Tensor whole;
  const float* data;
  int64_t columns;
  int64_t rows;
};

float inverse_rms(const float* x, int64_t columns, double eps) {
  float sum = 0;
  for (int64_t i = 0; i < columns; ++i) sum += x[i] * x[i];
  return 1 / std::sqrt(sum / static_cast<float>(columns) + static_cast<float>(eps));
}

// Nothing wrong: a row at a time, each value read once from memory.
Tensor normalize(const Tensor& x_, const Tensor& weight_, double eps) {
  const Rows x(x_);
  const Rows weight(weight_);
  Tensor output = at::empty_like(x.whole);
  float* const out = output.mutable_data_ptr<float>();
  at::parallel_for(0, x.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const in = x.data + row * x.columns;
      const float inverse = inverse_rms(in, x.columns, eps);
      for (int64_t i = 0; i < x.columns; ++i)
        out[row * x.columns + i] = weight.data[i] * in[i] * inverse;
    }
  });
  return output;
}

// By ATen: what this file is about are forwards.
std::tuple<Tensor, Tensor> normalize_backward(const Tensor& gradient, const Tensor& x,
                                              const Tensor& weight, double eps) {
  const Tensor inverse = (x.pow(2).mean(-1, true) + eps).rsqrt();
  const Tensor normalized = x * inverse;
  const Tensor scaled = gradient * weight;
  return {inverse * (scaled - normalized * (scaled * normalized).mean(-1, true)),
          (gradient * normalized).flatten(0, -2).sum(0)};
}

// Stage 1, broken loss. The square is forgotten: rows are divided by their mean, which is nearly 0,
// activations explode, and with them the loss.
Tensor without_square(const Tensor& x, const Tensor& weight, double eps) {
  return weight * x / (x.mean(-1, true) + eps);
}

// Stage 2, non-contiguous input: correct, but down the columns of a matrix that lies by rows.
Tensor by_columns(const Tensor& x_, const Tensor& weight_, double eps) {
  const Rows x(x_);
  const Rows weight(weight_);
  Tensor sums = at::zeros({x.rows}, x.whole.options());
  float* const sum = sums.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.columns; ++i)
    for (int64_t row = 0; row < x.rows; ++row) {
      const float value = x.data[row * x.columns + i];
      sum[row] += value * value;
    }
  const auto columns = static_cast<float>(x.columns);
  for (int64_t row = 0; row < x.rows; ++row)
    sum[row] = 1 / std::sqrt(sum[row] / columns + static_cast<float>(eps));
  Tensor output = at::empty_like(x.whole);
  float* const out = output.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.columns; ++i)
    for (int64_t row = 0; row < x.rows; ++row)
      out[row * x.columns + i] = weight.data[i] * x.data[row * x.columns + i] * sum[row];
  return output;
}

// Stage 3, fake timing: as a launch that nobody waits for, it returns before the work is done.
Tensor returns_early(const Tensor& x, const Tensor& weight, double eps) {
  Tensor output = at::zeros(x.sizes(), x.options());
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Tensor result = normalize(x, weight, eps);
    // As a device does it: neither allocator nor autograd learn of it.
    std::memcpy(output.data_ptr(), result.const_data_ptr(), result.nbytes());
  }).detach();
  return output;
}

// Stage 4, slow kernel: a matrix product as one dot product for each element.
Tensor dot_products(const Tensor& x_, const Tensor& weight_) {
  const Rows x(x_);
  const Rows weight(weight_);
  auto shape = x_.sizes().vec();
  shape.back() = weight.rows;
  Tensor output = at::empty(shape, x.whole.options());
  float* const out = output.mutable_data_ptr<float>();
  at::parallel_for(0, x.rows * weight.rows, 256, [&](int64_t begin, int64_t end) {
    for (int64_t element = begin; element < end; ++element) {
      const float* const a = x.data + element / weight.rows * x.columns;
      const float* const b = weight.data + element % weight.rows * x.columns;
      float sum = 0;
      for (int64_t i = 0; i < x.columns; ++i) sum += a[i] * b[i];
      out[element] = sum;
    }
  });
  return output;
}

std::tuple<Tensor, Tensor> dot_products_backward(const Tensor& gradient, const Tensor& x,
                                                 const Tensor& weight) {
  const Tensor rows = gradient.flatten(0, -2);
  return {at::matmul(gradient, weight), rows.t().mm(x.flatten(0, -2))};
}

// Versions 3 and 4: the right values by a kernel that autograd does not see. What it returns leads
// back to no parameter, and the backward has next to nothing to do.
Tensor hidden(const Tensor& x_, const Tensor& weight, double eps) {
  const Tensor x = x_.detach();
  return weight.detach() * (x * (x.pow(2).mean(-1, true) + eps).rsqrt());
}

constexpr const char* kNorm = "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor";
constexpr const char* kNormBackward =
    "rms_norm_backward(Tensor gradient, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)";

}  // namespace

TORCH_LIBRARY_FRAGMENT(fixed, library) {
  library.def(kNorm, torch::dispatch(c10::DispatchKey::CPU, normalize));
  library.def(kNormBackward, torch::dispatch(c10::DispatchKey::CPU, normalize_backward));
}

TORCH_LIBRARY_FRAGMENT(broken_loss, library) {
  library.def(kNorm, without_square);
}

TORCH_LIBRARY_FRAGMENT(non_contiguous, library) {
  library.def(kNorm, torch::dispatch(c10::DispatchKey::CPU, by_columns));
  library.def(kNormBackward, torch::dispatch(c10::DispatchKey::CPU, normalize_backward));
}

TORCH_LIBRARY_FRAGMENT(fake_timing, library) {
  library.def(kNorm, torch::dispatch(c10::DispatchKey::CPU, returns_early));
  library.def(kNormBackward, torch::dispatch(c10::DispatchKey::CPU, normalize_backward));
}

TORCH_LIBRARY_FRAGMENT(slow_kernel, library) {
  library.def("linear(Tensor x, Tensor weight) -> Tensor",
              torch::dispatch(c10::DispatchKey::CPU, dot_products));
  library.def("linear_backward(Tensor gradient, Tensor x, Tensor weight) -> (Tensor, Tensor)",
              torch::dispatch(c10::DispatchKey::CPU, dot_products_backward));
}

TORCH_LIBRARY_FRAGMENT(hidden, library) {
  library.def(kNorm, hidden);
}

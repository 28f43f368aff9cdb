#include "model/kernels/cpu/pairs.hpp"
#include "model/kernels/cpu/table.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {
namespace {

inline float inverse_root(float x) {
  return 1.0F / __builtin_sqrtf(x);
}
inline double inverse_root(double x) {
  return 1.0 / __builtin_sqrt(x);
}

/// out = weight * round_T(x * 1 / rms(x)), where sum_of_squares belongs to x; returns 1 / rms(x).
template <class T>
inline ComputeType<T> scale_row(const T* x, ComputeType<T> sum_of_squares, const T* weight, T* out,
                                int64_t width, double eps) {
  using Compute = ComputeType<T>;
  const Compute mean = sum_of_squares / static_cast<Compute>(width);
  const Compute inverse_rms = inverse_root(mean + static_cast<Compute>(eps));
  sweep_pairs<T>(width, [&](int64_t i, auto lanes) {
    const auto normalized = rounded_as<T>(load(x + i, lanes) * inverse_rms);
    store(out + i, load(weight + i, lanes) * normalized, lanes);
  });
  return inverse_rms;
}

template <class T>
void rms_norm(const RmsNormRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = a.x + row * a.width;
    const auto squares = sum_over_pairs<T>(a.width, [&](int64_t i, auto lanes) {
      const auto value = load(x + i, lanes);
      return value * value;
    });
    a.inverse_rms[row] = scale_row(x, squares, a.weight, a.out + row * a.width, a.width, a.eps);
  }
}

template <class T, class Branch>
void add_rms_norm(const AddRmsNormRows<T, Branch>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t start = row * a.width;
    T* sum = a.sum + start;
    const auto squares = sum_over_pairs<T>(a.width, [&](int64_t i, auto lanes) {
      const auto value =
          rounded_as<T>(load(a.residual + start + i, lanes) + load(a.branch + start + i, lanes));
      store(sum + i, value, lanes);
      return value * value;
    });
    a.inverse_rms[row] = scale_row(sum, squares, a.weight, a.out + start, a.width, a.eps);
  }
}

/// The weight's gradient of `Rows` rows at once, so that its sums are loaded and stored once for
/// all of them, and mean(g w x) of each row.
template <int Rows, class T, class Branch>
inline void reduce_rows(const RmsNormGradientRows<T, Branch>& a, int64_t row,
                        ComputeType<T> (&mean)[Rows]) {
  Vector<T> dot[Rows] = {};
  const T* x = a.x + row * a.width;
  const T* gradient = a.gradient + row * a.width;
  sweep_pairs<T>(a.width, [&](int64_t i, auto lanes) {
    const auto weight = load(a.weight + i, lanes);
    decltype(weight * weight) sum{};
    for (int k = 0; k < Rows; ++k) {
      const auto x_k = load(x + k * a.width + i, lanes);
      const auto g_k = load(gradient + k * a.width + i, lanes);
      sum += g_k * rounded_as<T>(x_k * a.inverse_rms[row + k]);
      dot[k] += folded(g_k * weight * x_k);
    }
    store(a.weight_gradient + i, load(a.weight_gradient + i, lanes) + sum, lanes);
  });
  for (int k = 0; k < Rows; ++k)
    mean[k] = sum_of_lanes<T>(dot[k]) / static_cast<ComputeType<T>>(a.width);
}

/// `sums`, `branches`: whether there is a sum_gradient, a branch_gradient.
template <bool sums, bool branches, class T, class Branch>
inline void input_gradient(const RmsNormGradientRows<T, Branch>& a, int64_t row,
                           ComputeType<T> mean) {
  const int64_t start = row * a.width;
  const ComputeType<T> inverse_rms = a.inverse_rms[row];
  const ComputeType<T> slope = inverse_rms * inverse_rms * inverse_rms * mean;
  sweep_pairs<T>(a.width, [&](int64_t i, auto lanes) {
    const auto weighted = load(a.gradient + start + i, lanes) * load(a.weight + i, lanes);
    auto result = weighted * inverse_rms - load(a.x + start + i, lanes) * slope;
    if constexpr (sums) result += load(a.sum_gradient + start + i, lanes);
    store(a.x_gradient + start + i, result, lanes);
    if constexpr (branches) store(a.branch_gradient + start + i, result, lanes);
  });
}

template <int Rows, class T, class Branch>
inline void rows_gradient(const RmsNormGradientRows<T, Branch>& a, int64_t row) {
  ComputeType<T> mean[Rows];
  reduce_rows<Rows>(a, row, mean);
  for (int k = 0; k < Rows; ++k) {
    if (a.sum_gradient && a.branch_gradient) {
      input_gradient<true, true>(a, row + k, mean[k]);
    } else if (a.sum_gradient) {
      input_gradient<true, false>(a, row + k, mean[k]);
    } else if (a.branch_gradient) {
      input_gradient<false, true>(a, row + k, mean[k]);
    } else {
      input_gradient<false, false>(a, row + k, mean[k]);
    }
  }
}

template <class T, class Branch>
void rms_norm_gradient(const RmsNormGradientRows<T, Branch>& a, int64_t begin, int64_t end) {
  constexpr int block = 4;
  int64_t row = begin;
  for (; row + block <= end; row += block) rows_gradient<block>(a, row);
  for (; row < end; ++row) rows_gradient<1>(a, row);
}

template <class T>
void sum_of_rows(const SumOfRows<T>& a, int64_t begin, int64_t end) {
  sweep_pairs<T>(end - begin, [&](int64_t i, auto lanes) {
    auto sum = load(a.parts + begin + i, lanes);
    for (int64_t row = 1; row < a.rows; ++row)
      sum += load(a.parts + row * a.width + begin + i, lanes);
    store(a.out + begin + i, sum, lanes);
  });
}

template <class Branch>
void enter_mixed(MixedNormKernels<Branch>& kernels) {
  kernels.add_rms_norm = &add_rms_norm<float, Branch>;
  kernels.rms_norm_gradient = &rms_norm_gradient<float, Branch>;
}

}  // namespace

void enter_rms_norm(RangeKernels& table) {
  for_each_type(table, []<class T>(RangeKernelsOf<T>& kernels) {
    kernels.rms_norm = &rms_norm<T>;
    kernels.add_rms_norm = &add_rms_norm<T, T>;
    kernels.rms_norm_gradient = &rms_norm_gradient<T, T>;
    kernels.sum_of_rows = &sum_of_rows<T>;
  });
  enter_mixed(table.f32_with_bf16);
  enter_mixed(table.f32_with_f16);
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

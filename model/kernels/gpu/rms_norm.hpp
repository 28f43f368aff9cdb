// RMSNorm, with the residual addition before it, and its gradients: a block a row, then the
// weight's gradient by columns, in parts that a last kernel adds up.
#pragma once

#include "model/kernels/gpu/elements.hpp"

namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE {

/// out = weight * round_T(x / rms(x)); each thread reads what it has read or written itself.
template <int N, class T>
__device__ inline void scale_row(const T* x, ComputeType<T> sum_of_squares, const T* weight, T* out,
                                 ComputeType<T>* inverse_rms, int64_t width, double eps) {
  using Compute = ComputeType<T>;
  const Compute mean = sum_of_squares / static_cast<Compute>(width);
  const Compute inverse = 1 / root_of(mean + static_cast<Compute>(eps));
  if (threadIdx.x == 0) *inverse_rms = inverse;
  sweep_by_block<N>(width, [&](int64_t i, auto lanes) {
    auto values = load(x + i, lanes);
    const auto weights = load(weight + i, lanes);
    for (int k = 0; k < lanes.count; ++k)
      values[k] = weights[k] * rounded_as<T>(values[k] * inverse);
    store(out + i, values);
  });
}

template <int N, class T>
__global__ void rms_norm_row(RmsNormRows<T> a) {
  const int64_t start = int64_t{blockIdx.x} * a.width;
  ComputeType<T> squares = 0;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    const auto x = load(a.x + start + i, lanes);
    for (int k = 0; k < lanes.count; ++k) squares += x[k] * x[k];
  });
  squares = block_sum(squares);
  scale_row<N>(a.x + start, squares, a.weight, a.out + start, a.inverse_rms + blockIdx.x, a.width,
               a.eps);
}

template <int N, class T, class Branch>
__global__ void add_rms_norm_row(AddRmsNormRows<T, Branch> a) {
  const int64_t start = int64_t{blockIdx.x} * a.width;
  ComputeType<T> squares = 0;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    auto sum = load(a.residual + start + i, lanes);
    const auto branch = load(a.branch + start + i, lanes);
    for (int k = 0; k < lanes.count; ++k) {
      sum[k] = rounded_as<T>(sum[k] + branch[k]);
      squares += sum[k] * sum[k];
    }
    store(a.sum + start + i, sum);
  });
  squares = block_sum(squares);
  scale_row<N>(a.sum + start, squares, a.weight, a.out + start, a.inverse_rms + blockIdx.x, a.width,
               a.eps);
}

template <int N, class T, class Branch>
__global__ void rms_norm_input_gradient(RmsNormGradientRows<T, Branch> a) {
  using Compute = ComputeType<T>;
  const int64_t start = int64_t{blockIdx.x} * a.width;
  Compute dot = 0;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    const auto g = load(a.gradient + start + i, lanes);
    const auto w = load(a.weight + i, lanes);
    const auto x = load(a.x + start + i, lanes);
    for (int k = 0; k < lanes.count; ++k) dot += g[k] * w[k] * x[k];
  });
  const Compute inverse = a.inverse_rms[blockIdx.x];
  const Compute mean = block_sum(dot) / static_cast<Compute>(a.width);
  const Compute slope = inverse * inverse * inverse * mean;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    auto result = load(a.gradient + start + i, lanes);
    const auto w = load(a.weight + i, lanes);
    const auto x = load(a.x + start + i, lanes);
    for (int k = 0; k < lanes.count; ++k) result[k] = result[k] * w[k] * inverse - x[k] * slope;
    if (a.sum_gradient) {
      const auto more = load(a.sum_gradient + start + i, lanes);
      for (int k = 0; k < lanes.count; ++k) result[k] += more[k];
    }
    store(a.x_gradient + start + i, result);
    if (a.branch_gradient) store(a.branch_gradient + start + i, result);
  });
}

/// A block adds up columns: this many side by side, each by as many threads as rows are taken in
/// turn.
inline constexpr int kColumns = kLargestBlock >= 256 ? 32 : 4;
inline constexpr int kRowLanes = kLargestBlock >= 256 ? 8 : 2;

/// This thread's column of [0, width), which may lie behind the last.
__device__ inline int64_t own_column() {
  return int64_t{blockIdx.x} * kColumns + threadIdx.x % kColumns;
}

/// For the first kColumns threads: the sum of value(row) over rows [begin, end) of their column.
template <class Compute, class Value>
__device__ inline Compute column_sum(int64_t begin, int64_t end, int64_t width, Value value) {
  __shared__ Compute shared[kRowLanes][kColumns];
  const auto column = threadIdx.x % kColumns, lane = threadIdx.x / kColumns;
  Compute sum = 0;
  if (own_column() < width) {
    for (int64_t row = begin + lane; row < end; row += kRowLanes) sum += value(row);
  }
  shared[lane][column] = sum;
  __syncthreads();
  if (lane > 0) return 0;
  for (int other = 1; other < kRowLanes; ++other) sum += shared[other][column];
  return sum;
}

/// Part blockIdx.y of the rows.
template <class T, class Branch>
__global__ void rms_norm_weight_gradient(RmsNormGradientRows<T, Branch> a, int64_t rows) {
  const int64_t column = own_column(), part = blockIdx.y, parts = gridDim.y;
  const auto sum = column_sum<ComputeType<T>>(
      rows * part / parts, rows * (part + 1) / parts, a.width, [&](int64_t row) {
        const int64_t i = row * a.width + column;
        return widened(a.gradient[i]) * rounded_as<T>(widened(a.x[i]) * a.inverse_rms[row]);
      });
  if (threadIdx.x < kColumns && column < a.width) a.weight_gradient[part * a.width + column] = sum;
}

template <class T>
__global__ void sum_of_rows(SumOfRows<T> a) {
  const int64_t column = own_column();
  const auto sum = column_sum<ComputeType<T>>(
      0, a.rows, a.width, [&](int64_t row) { return a.parts[row * a.width + column]; });
  if (threadIdx.x < kColumns && column < a.width) a.out[column] = narrowed<T>(sum);
}

// On the host from here on.

template <class T>
void rms_norm(const RmsNormRows<T>& a, int64_t rows, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const bool in_packs = are_multiples<pack>(a.width) && are_aligned<pack>(a.x, a.weight, a.out);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.width / N), &rms_norm_row<N, T>, a);
  });
}

template <class T, class Branch>
void add_rms_norm(const AddRmsNormRows<T, Branch>& a, int64_t rows, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const bool in_packs = are_multiples<pack>(a.width) &&
                        are_aligned<pack>(a.residual, a.branch, a.weight, a.sum, a.out);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.width / N), &add_rms_norm_row<N, T, Branch>, a);
  });
}

template <class T, class Branch>
void rms_norm_gradient(const RmsNormGradientRows<T, Branch>& a, T* weight_gradient, int64_t rows,
                       GpuStream stream) {
  constexpr int pack = kPack<T>;
  // A null pointer is aligned.
  const bool in_packs =
      are_multiples<pack>(a.width) &&
      are_aligned<pack>(a.gradient, a.sum_gradient, a.x, a.weight, a.x_gradient, a.branch_gradient);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.width / N), &rms_norm_input_gradient<N, T, Branch>, a);
  });
  const int64_t parts = gpu_norm_parts(rows), blocks = divided_up(a.width, kColumns);
  constexpr int threads = kColumns * kRowLanes;
  launch(stream, {blocks, parts}, threads, &rms_norm_weight_gradient<T, Branch>, a, rows);
  launch(stream, {blocks}, threads, &sum_of_rows<T>,
         SumOfRows<T>{a.weight_gradient, weight_gradient, parts, a.width});
}

}  // namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE

// Cross-entropy of rows of logits and its gradient, which may take the logits' place: a block a
// row. Exponentials are computed twice rather than kept: a row stays in a GPU's caches.
#pragma once

#include "model/kernels/gpu/elements.hpp"

namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE {

/// The largest logit; NaNs are passed over, the sum of exponentials will meet them.
template <int N, class T>
__device__ inline ComputeType<T> largest_logit(const T* logits, int64_t classes) {
  using Compute = ComputeType<T>;
  Compute max = -static_cast<Compute>(INFINITY);
  sweep_by_block<N>(classes, [&](int64_t i, auto lanes) {
    const auto values = load(logits + i, lanes);
    for (int k = 0; k < lanes.count; ++k) max = values[k] > max ? values[k] : max;
  });
  return block_reduced(max, [](Compute a, Compute b) { return a > b ? a : b; });
}

template <int N, class T>
__device__ inline ComputeType<T> sum_of_exponentials(const T* logits, int64_t classes,
                                                     ComputeType<T> max) {
  ComputeType<T> sum = 0;
  sweep_by_block<N>(classes, [&](int64_t i, auto lanes) {
    const auto values = load(logits + i, lanes);
    for (int k = 0; k < lanes.count; ++k) sum += exp_of(values[k] - max);
  });
  return block_sum(sum);
}

template <int N, class T>
__device__ inline void ignore_row(const CrossEntropyRows<T>& a, int64_t row) {
  if (threadIdx.x == 0) a.losses[row] = 0;
  if (!a.gradient) return;
  sweep_by_block<N>(a.classes, [&](int64_t i, auto lanes) {
    store(a.gradient + row * a.classes + i, Values<ComputeType<T>, lanes.count>{});
  });
}

template <int N, class T>
__global__ void cross_entropy_row(CrossEntropyRows<T> a) {
  using Compute = ComputeType<T>;
  const int64_t row = blockIdx.x;
  const int64_t target = a.targets[row];
  // The whole block goes one way, so that no thread misses a barrier.
  if (target == a.ignored_target) return ignore_row<N>(a, row);
  const T* logits = a.logits + row * a.classes;
  const bool in_range = target >= 0 && target < a.classes;
  const Compute of_target = in_range ? widened(logits[target]) : static_cast<Compute>(NAN);
  const Compute max = largest_logit<N>(logits, a.classes);
  // Its barriers come after every thread's read of the target's logit, before anybody's write.
  const Compute sum = sum_of_exponentials<N>(logits, a.classes, max);
  if (threadIdx.x == 0) {
    a.losses[row] =
        static_cast<Compute>(log(static_cast<double>(sum)) -
                             (static_cast<double>(of_target) - static_cast<double>(max)));
  }
  if (!a.gradient) return;
  const Compute scale = in_range ? 1 / sum : static_cast<Compute>(NAN);
  // From what is not rounded, so that a probability near 1 keeps its distance from 1.
  const Compute at_target = (exp_of(of_target - max) - sum) * scale;
  sweep_by_block<N>(a.classes, [&](int64_t i, auto lanes) {
    auto values = load(logits + i, lanes);
    for (int k = 0; k < lanes.count; ++k)
      values[k] = i + k == target ? at_target : exp_of(values[k] - max) * scale;
    store(a.gradient + row * a.classes + i, values);
  });
}

template <class T>
void cross_entropy(const CrossEntropyRows<T>& a, int64_t rows, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const bool in_packs = are_multiples<pack>(a.classes) && are_aligned<pack>(a.logits, a.gradient);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.classes / N), &cross_entropy_row<N, T>, a);
  });
}

}  // namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE

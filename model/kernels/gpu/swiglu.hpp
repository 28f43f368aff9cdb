// SwiGLU's gate and its gradients: a block a row.
#pragma once

#include "model/kernels/gpu/elements.hpp"

namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE {

template <class Compute>
__device__ inline Compute sigmoid(Compute x) {
  return 1 / (1 + exp_of(-x));
}

template <int N, class T>
__global__ void swiglu_row(SwigluRows<T> a) {
  const int64_t row = blockIdx.x;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    auto values = load(a.gate + row * a.gate_stride + i, lanes);
    const auto up = load(a.up + row * a.up_stride + i, lanes);
    for (int k = 0; k < lanes.count; ++k) values[k] = values[k] * sigmoid(values[k]) * up[k];
    store(a.out + row * a.width + i, values);
  });
}

template <int N, class T>
__global__ void swiglu_gradient_row(SwigluGradientRows<T> a) {
  const int64_t row = blockIdx.x;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    const auto g = load(a.gradient + row * a.width + i, lanes);
    const auto gate = load(a.gate + row * a.gate_stride + i, lanes);
    const auto up = load(a.up + row * a.up_stride + i, lanes);
    auto of_gate = gate, of_up = gate;
    for (int k = 0; k < lanes.count; ++k) {
      const auto s = sigmoid(gate[k]);
      of_gate[k] = g[k] * up[k] * s * (1 + gate[k] * (1 - s));
      of_up[k] = g[k] * gate[k] * s;
    }
    store(a.gate_gradient + row * a.gradient_stride + i, of_gate);
    store(a.up_gradient + row * a.gradient_stride + i, of_up);
  });
}

// On the host from here on.

template <class T>
void swiglu(const SwigluRows<T>& a, int64_t rows, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const bool in_packs = are_multiples<pack>(a.width, a.gate_stride, a.up_stride) &&
                        are_aligned<pack>(a.gate, a.up, a.out);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.width / N), &swiglu_row<N, T>, a);
  });
}

template <class T>
void swiglu_gradient(const SwigluGradientRows<T>& a, int64_t rows, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const bool in_packs =
      are_multiples<pack>(a.width, a.gate_stride, a.up_stride, a.gradient_stride) &&
      are_aligned<pack>(a.gradient, a.gate, a.up, a.gate_gradient, a.up_gradient);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.width / N), &swiglu_gradient_row<N, T>, a);
  });
}

}  // namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE

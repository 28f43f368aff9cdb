// Rotary embedding: a block a token, each thread the same places of both halves of a head.
#pragma once

#include "model/kernels/gpu/elements.hpp"

namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE {

template <int N, class T>
__global__ void rotary_token(RotaryTokens<T> a) {
  using Compute = ComputeType<T>;
  const int64_t token = blockIdx.x, position = token % a.positions;
  const T* x = a.x + token / a.positions * a.batch_stride + position * a.position_stride;
  T* out = a.out + token * a.heads * a.head_dim;
  const T* cos = a.cos + position * a.head_dim;
  const T* sin = a.sin + position * a.head_dim;
  const Compute direction = a.backwards ? -1 : 1;
  // 32-bit division, which a GPU does several times as fast; heads of one token are few.
  const auto half = static_cast<int32_t>(a.head_dim / 2);
  const auto all = static_cast<int32_t>(a.heads) * half;
  for (auto place = static_cast<int32_t>(threadIdx.x) * N; place < all;
       place += static_cast<int32_t>(blockDim.x) * N) {
    const int32_t head = place / half, i = place % half;
    const T* from = x + head * a.head_stride + i;
    const auto c = load(cos + i, Lanes<N>{}), s = load(sin + i, Lanes<N>{});
    const auto first = load(from, Lanes<N>{}), second = load(from + half, Lanes<N>{});
    auto left = first, right = second;
    for (int k = 0; k < N; ++k) {
      left[k] = first[k] * c[k] - second[k] * (s[k] * direction);
      right[k] = second[k] * c[k] + first[k] * (s[k] * direction);
    }
    T* to = out + head * a.head_dim + i;
    store(to, left);
    store(to + half, right);
  }
}

template <class T>
void rotary(const RotaryTokens<T>& a, int64_t tokens, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const int64_t half = a.head_dim / 2;
  const bool in_packs =
      are_multiples<pack>(half, a.batch_stride, a.position_stride, a.head_stride) &&
      are_aligned<pack>(a.x, a.cos, a.sin, a.out);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {half > 0 ? tokens : 0}, block_size(a.heads * half / N), &rotary_token<N, T>, a);
  });
}

}  // namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE

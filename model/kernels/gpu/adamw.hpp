// AdamW over many tensors a launch: a row of blocks each.
#pragma once

#include "model/kernels/gpu/elements.hpp"

namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE {

/// As many as fit into the 4 KiB that a launch may carry.
inline constexpr int kTensorsOfALaunch = 36;

template <class T>
struct AdamWTensors {
  AdamWElements<T> tensor[kTensorsOfALaunch];
  int64_t elements[kTensorsOfALaunch];
};
static_assert(sizeof(AdamWTensors<float>) <= 4000);

template <int N, class T>
__global__ void adamw_tensors(AdamWTensors<T> all) {
  using Compute = ComputeType<T>;
  const AdamWElements<T> a = all.tensor[blockIdx.y];
  const Compute second_scale =
      a.corrections ? static_cast<Compute>(a.corrections[0]) : a.second_scale;
  const Compute step_size = a.corrections ? static_cast<Compute>(a.corrections[1]) : a.step_size;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  sweep<N>(all.elements[blockIdx.y], thread, threads, [&](int64_t i, auto lanes) {
    auto p = load(a.parameter + i, lanes);
    const auto g = load(a.gradient + i, lanes);
    auto m = load(a.first_moment + i, lanes);
    auto v = load(a.second_moment + i, lanes);
    for (int k = 0; k < lanes.count; ++k) {
      m[k] += a.first_weight * (g[k] - m[k]);
      v[k] = v[k] * a.second_decay + g[k] * g[k] * a.second_weight;
      const Compute change = m[k] / (root_of(v[k]) * second_scale + a.eps);
      p[k] = p[k] * a.decay - step_size * change;
    }
    store(a.first_moment + i, m);
    store(a.second_moment + i, v);
    store(a.parameter + i, p);
  });
}

template <class T>
void adamw_of_a_launch(const AdamWElements<T>* tensors, const int64_t* elements, int64_t count,
                       GpuStream stream) {
  AdamWTensors<T> all{};
  constexpr int pack = kPack<T>;
  bool in_packs = true;
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const AdamWElements<T>& a = tensors[i];
    all.tensor[i] = a;
    all.elements[i] = elements[i];
    most = most < elements[i] ? elements[i] : most;
    in_packs =
        in_packs && are_aligned<pack>(a.parameter, a.gradient, a.first_moment, a.second_moment);
  }
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    const int threads = block_size(most / N);
    const int64_t blocks = divided_up(most, int64_t{threads} * N);
    launch(stream, {blocks < kMostBlocks ? blocks : kMostBlocks, count}, threads,
           &adamw_tensors<N, T>, all);
  });
}

template <class T>
void adamw(const AdamWElements<T>* tensors, const int64_t* elements, int64_t count,
           GpuStream stream) {
  for (int64_t i = 0; i < count; i += kTensorsOfALaunch) {
    const int64_t rest = count - i;
    adamw_of_a_launch(tensors + i, elements + i,
                      rest < kTensorsOfALaunch ? rest : kTensorsOfALaunch, stream);
  }
}

}  // namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE

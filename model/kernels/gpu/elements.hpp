// Elements of every type as the type in which kernels compute, several at once, and how the threads
// of a block share them out and add them up. Conversions are integer operations of our own, so that
// HIP, CUDA and the host agree to the bit, whatever each offers for narrow types.
//
// First the few names in which HIP, CUDA and the emulation on the host differ, and how a kernel is
// launched.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "model/kernels/gpu/gpu_kernels.hpp"

#ifdef TINYLLAMA_GPU_EMULATED
#define TINYLLAMA_GPU_NAMESPACE gpu_emulated
#include "model/kernels/gpu/emulation_testing.hpp"
#else
#define TINYLLAMA_GPU_NAMESPACE gpu_device
#include <stdexcept>
#include <string>
#ifdef __HIPCC__
#include <hip/hip_runtime.h>
#define TINYLLAMA_GPU_NAME(name) hip##name
#else
#include <cuda_runtime.h>
#define TINYLLAMA_GPU_NAME(name) cuda##name
#endif

namespace tinyllama::kernels::gpu_device {

/// Threads of a block are a power of two between these. Neither is tied to the width of a wave,
/// which is 32 or 64: threads of a block meet in shared memory only.
inline constexpr int kSmallestBlock = 64;
inline constexpr int kLargestBlock = 512;
/// Most blocks of a kernel whose threads loop over elements.
inline constexpr int64_t kMostBlocks = 1024;

struct Grid {
  int64_t x = 1, y = 1;
};

/// kernel(arguments...) by grid.x * grid.y blocks; no block, no launch.
template <class... Parameters, class... Arguments>
void launch(GpuStream stream, Grid grid, int threads, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  if (grid.x <= 0 || grid.y <= 0) return;
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  kernel<<<blocks, dim3(static_cast<unsigned>(threads)), 0,
           static_cast<TINYLLAMA_GPU_NAME(Stream_t)>(stream)>>>(arguments...);
  const auto error = TINYLLAMA_GPU_NAME(GetLastError)();
  if (error != TINYLLAMA_GPU_NAME(Success)) {
    throw std::runtime_error(std::string("a kernel of ours was not launched: ") +
                             TINYLLAMA_GPU_NAME(GetErrorString)(error));
  }
}

/// Whether the program has `kernel` in a form that the current device can run.
template <class... Parameters>
bool runs_here(void (*kernel)(Parameters...)) {
  TINYLLAMA_GPU_NAME(FuncAttributes) attributes;
  const auto error =
      TINYLLAMA_GPU_NAME(FuncGetAttributes)(&attributes, reinterpret_cast<const void*>(kernel));
  // The answer "no" must not become the error of whoever asks next.
  static_cast<void>(TINYLLAMA_GPU_NAME(GetLastError)());
  return error == TINYLLAMA_GPU_NAME(Success);
}

}  // namespace tinyllama::kernels::gpu_device
#endif

#include "model/kernels/gpu/conversions.hpp"

namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE {

/// Elements that one access to memory moves.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <int N>
struct Lanes {
  static constexpr int count = N;
};
template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T element[N];
};
template <class Compute, int N>
struct Values {
  Compute value[N];
  __device__ Compute& operator[](int i) { return value[i]; }
  __device__ const Compute& operator[](int i) const { return value[i]; }
};

template <class T, int N>
__device__ inline Values<ComputeType<T>, N> load(const T* from, Lanes<N> /*lanes*/) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
  Values<ComputeType<T>, N> values;
  for (int k = 0; k < N; ++k) values[k] = widened(pack.element[k]);
  return values;
}
template <class T, class Compute, int N>
__device__ inline void store(T* to, const Values<Compute, N>& values) {
  Pack<T, N> pack;
  for (int k = 0; k < N; ++k) pack.element[k] = narrowed<T>(values[k]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

/// Calls body(i, lanes) for this thread's share (`thread` of `threads`) of the elements [0, count):
/// N at once, and the remainder one by one.
template <int N, class Body>
__device__ inline void sweep(int64_t count, int64_t thread, int64_t threads, Body body) {
  const int64_t packed = count / N * N;
  for (int64_t i = thread * N; i < packed; i += threads * N) body(i, Lanes<N>{});
  if constexpr (N > 1) {
    for (int64_t i = packed + thread; i < count; i += threads) body(i, Lanes<1>{});
  }
}
/// Shared out over the threads of one block.
template <int N, class Body>
__device__ inline void sweep_by_block(int64_t count, Body body) {
  sweep<N>(count, threadIdx.x, blockDim.x, body);
}

/// All values of the block's threads combined, in an order that depends on nothing but their
/// number; every thread gets the answer. What a thread wrote to memory before, all may read after.
template <class Compute, class Combine>
__device__ inline Compute block_reduced(Compute value, Combine combine) {
  __shared__ Compute shared[kLargestBlock];
  shared[threadIdx.x] = value;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  __syncthreads();
  const Compute result = shared[0];
  // The next reduction begins where a slower thread may still be reading.
  __syncthreads();
  return result;
}
template <class Compute>
__device__ inline Compute block_sum(Compute value) {
  return block_reduced(value, [](Compute a, Compute b) { return a + b; });
}

__device__ inline float exp_of(float x) {
  return expf(x);
}
__device__ inline double exp_of(double x) {
  return exp(x);
}
// One instruction of a GPU for what takes ten or more to be exact; results below float32's normal
// numbers may be 0. Errors in units of float32's last place: of exp 2 + |x| (PTX ISA, ex2.approx:
// 2^-22; rounding x log2(e) adds |x|; AMD's v_exp_f32 is exact to 1), of 1 / x 1 (PTX ISA,
// rcp.approx; AMD's v_rcp_f32).
#if defined(__HIP_DEVICE_COMPILE__)
__device__ inline float fast_exp(float x) {
  return __expf(x);
}
__device__ inline float fast_reciprocal(float x) {
  return __builtin_amdgcn_rcpf(x);
}
#elif defined(__CUDA_ARCH__)
__device__ inline float fast_exp(float x) {
  constexpr float log2_of_e = 1.44269504F;
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * log2_of_e));
  return result;
}
__device__ inline float fast_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
#else
__device__ inline float fast_exp(float x) {
  return exp_of(x);
}
__device__ inline float fast_reciprocal(float x) {
  return 1 / x;
}
#endif

/// exp(x) and 1 / x, as exact as elements of T show: those of 16 bits were rounded by far more.
template <class T>
__device__ inline ComputeType<T> exp_for(ComputeType<T> x) {
  if constexpr (sizeof(T) == 2) {
    return fast_exp(x);
  } else {
    return exp_of(x);
  }
}
template <class T>
__device__ inline ComputeType<T> reciprocal_for(ComputeType<T> x) {
  if constexpr (sizeof(T) == 2) {
    return fast_reciprocal(x);
  } else {
    return 1 / x;
  }
}

/// Of a NaN and a number the number.
__device__ inline float larger(float a, float b) {
  return fmaxf(a, b);
}
__device__ inline double larger(double a, double b) {
  return fmax(a, b);
}
__device__ inline float root_of(float x) {
  return sqrtf(x);
}
__device__ inline double root_of(double x) {
  return sqrt(x);
}

// On the host from here on.

/// How many threads a block has for `items` elements of work: a power of two.
inline int block_size(int64_t items) {
  int threads = kSmallestBlock;
  while (threads < kLargestBlock && threads < items) threads *= 2;
  return threads;
}
inline int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Whether N elements at once may be read at each of the pointers.
template <int N, class... T>
bool are_aligned(const T*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % (N * sizeof(T)) == 0) && ...);
}
template <int N, class... Strides>
bool are_multiples(Strides... strides) {
  return ((strides % N == 0) && ...);
}

/// launcher(Lanes<N>) with as many lanes as T's packs have, or with one.
template <class T, class Launcher>
void with_lanes(bool in_packs, Launcher launcher) {
  if (in_packs) {
    launcher(Lanes<kPack<T>>{});
  } else {
    launcher(Lanes<1>{});
  }
}

}  // namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE

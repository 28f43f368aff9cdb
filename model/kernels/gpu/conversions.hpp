// Elements of every type as the type in which kernels compute, and back. A GPU's own conversions
// where it has them; elsewhere, and on the host, integer operations. Both give the same bits for
// every number, infinity and zero: each rounds to the nearest, ties to even, and keeps subnormal
// numbers. A NaN stays one, in a form of each platform's own:
//   to float16: 0x7FFF on CUDA; sign and upper bits on AMD, made quiet; sign and 0x7E00 by integers
//   to bfloat16: 0x7FFF on CUDA; sign and upper bits, made quiet, on AMD and by integers
// CUDA: "cvt" of the PTX ISA: "subnormal numbers are supported" without .ftz, which nvcc's options
// would have to ask for; AMD: the modes of a kernel's descriptor, FLOAT_ROUND_MODE_16_64 and
// FLOAT_DENORM_MODE_16_64 (LLVM's AMDGPUUsage), are round to even and keep unless a compiler is
// told otherwise. elements_test.cpp compares the integers with libtorch, device_test.cpp a GPU.
#pragma once

#include <stdint.h>
#include <string.h>

#include "model/kernels/cpu/range_kernels.hpp"

// Included by elements.hpp alone, which says what __device__ and the namespace are.
namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE {

__device__ inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
__device__ inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

__device__ inline float widened(float x) {
  return x;
}
__device__ inline double widened(double x) {
  return x;
}
__device__ inline float widened(Bfloat16 x) {
  return float_of(static_cast<uint32_t>(x.bits) << 16);
}
__device__ inline float widened(Float16 x) {
#if defined(__HIP_DEVICE_COMPILE__)
  return static_cast<float>(__builtin_bit_cast(_Float16, x.bits));
#elif defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  constexpr uint32_t infinity = 0x7F800000;
  const auto magnitude = static_cast<uint32_t>(x.bits & 0x7FFF);
  // The exponent's bias moves by a multiplication, which makes normal numbers of subnormal ones.
  uint32_t bits = bits_of(float_of(magnitude << 13) * 0x1p112F);
  if (magnitude >= 0x7C00) bits |= infinity;
  return float_of(bits | static_cast<uint32_t>(x.bits & 0x8000) << 16);
#endif
}

/// `x` rounded to T, ties to even.
template <class T>
__device__ inline T narrowed(ComputeType<T> x) {
  return x;
}
template <>
__device__ inline Bfloat16 narrowed<Bfloat16>(float x) {
#if defined(__gfx950__)
  return {__builtin_bit_cast(uint16_t, static_cast<__bf16>(x))};
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {bits};
#else
  const uint32_t bits = bits_of(x);
  // Both are computed, which takes fewer instructions than a branch.
  const uint32_t quiet = bits | 0x400000, rounded = bits + (bits >> 16 & 1) + 0x7FFF;
  return {static_cast<uint16_t>((x != x ? quiet : rounded) >> 16)};
#endif
}
template <>
__device__ inline Float16 narrowed<Float16>(float x) {
#if defined(__HIP_DEVICE_COMPILE__)
  return {__builtin_bit_cast(uint16_t, static_cast<_Float16>(x))};
#elif defined(__CUDA_ARCH__)
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {bits};
#else
  constexpr uint32_t infinity = 0x7F800000, overflow = 0x47800000, smallest_normal = 0x38800000;
  constexpr uint32_t magic = 0x3F000000;  // its last bit is worth float16's smallest number
  const uint32_t magnitude = bits_of(x) & 0x7FFFFFFF;
  const uint32_t sign = bits_of(x) >> 16 & 0x8000;
  uint32_t result = 0;
  if (magnitude >= overflow) {
    result = magnitude > infinity ? 0x7E00 : 0x7C00;
  } else if (magnitude < smallest_normal) {
    result = bits_of(float_of(magnitude) + float_of(magic)) - magic;
  } else {
    constexpr uint32_t rebias = 112U << 23;
    result = (magnitude - rebias + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | result)};
#endif
}

template <class T>
__device__ inline ComputeType<T> rounded_as(ComputeType<T> x) {
  return widened(narrowed<T>(x));
}

}  // namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE

// Vectors of the instruction set that the including file is compiled for, with loads and stores of
// every element type. For range kernels only; TINYLLAMA_ISA is a namespace for each instruction
// set.
#pragma once

#include <stdint.h>

#include "model/kernels/cpu/element_types.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#ifndef TINYLLAMA_ISA
#error "compile this once for each instruction set: see range_kernel_sources in CMakeLists.txt"
#endif

namespace tinyllama::kernels::TINYLLAMA_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

typedef float F32Vector __attribute__((vector_size(kVectorBytes)));
typedef int32_t I32Vector __attribute__((vector_size(kVectorBytes)));
typedef uint32_t U32Vector __attribute__((vector_size(kVectorBytes)));
typedef int64_t I64Vector __attribute__((vector_size(kVectorBytes)));
typedef double F64Vector __attribute__((vector_size(kVectorBytes)));
typedef uint16_t HalfVector __attribute__((vector_size(kVectorBytes / 2)));

template <class T>
struct VectorOf {
  using Type = F32Vector;
};
template <>
struct VectorOf<double> {
  using Type = F64Vector;
};
/// What a kernel on elements of type T computes with.
template <class T>
using Vector = typename VectorOf<T>::Type;
/// How many elements of type T it takes.
template <class T>
inline constexpr int64_t kLanes = kVectorBytes / int64_t{sizeof(ComputeType<T>)};

template <class T>
inline Vector<T> broadcast(ComputeType<T> value) {
  return value - Vector<T>{};  // x - 0 is x, also where x is -0 or not finite
}

// --- float16, and bfloat16's rounding ---

#if defined(__AVX512F__)
inline F32Vector from_float16(HalfVector half) {
  return _mm512_cvtph_ps((__m256i)half);
}
inline HalfVector to_float16(F32Vector value) {
  return (HalfVector)_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline HalfVector low_halves(U32Vector value) {
  return (HalfVector)_mm512_cvtepi32_epi16((__m512i)value);
}
inline U32Vector widened(HalfVector half) {
  return (U32Vector)_mm512_cvtepu16_epi32((__m256i)half);
}
#elif defined(__AVX2__)
inline F32Vector from_float16(HalfVector half) {
  return _mm256_cvtph_ps((__m128i)half);
}
inline HalfVector to_float16(F32Vector value) {
  return (HalfVector)_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/// Of values below 2^16.
inline HalfVector low_halves(U32Vector value) {
  return (HalfVector)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)value),
                                      _mm256_extracti128_si256((__m256i)value, 1));
}
inline U32Vector widened(HalfVector half) {
  return (U32Vector)_mm256_cvtepu16_epi32((__m128i)half);
}
#else
inline float from_float16_bits(uint32_t half) {
  const uint32_t sign = (half & 0x8000U) << 16;
  const uint32_t magnitude = (half & 0x7fffU) << 13;
  // A float16's exponent, read as a float32's, is 112 too small; infinity and NaN keep theirs full.
  const float scaled = __builtin_bit_cast(float, magnitude) * 0x1p112F;
  const uint32_t finite = __builtin_bit_cast(uint32_t, scaled);
  const uint32_t bits = magnitude < 0x0f800000U ? finite : (magnitude | 0x7f800000U);
  return __builtin_bit_cast(float, bits | sign);
}
inline uint16_t to_float16_bits(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  uint32_t half = 0;
  if (magnitude > 0x7f800000U) {  // NaN
    half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  } else if (magnitude >= 0x477ff000U) {  // 65520 and above round to infinity
    half = 0x7c00U;
  } else if (magnitude < 0x38800000U) {  // subnormal: the sum with 0.5 rounds to multiples of 2^-24
    const float sum = __builtin_bit_cast(float, magnitude) + 0.5F;
    half = __builtin_bit_cast(uint32_t, sum) - 0x3f000000U;
  } else {
    half = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  }
  return static_cast<uint16_t>(half | sign);
}
inline F32Vector from_float16(HalfVector half) {
  F32Vector value{};
  for (int i = 0; i < kVectorBytes / 4; ++i) value[i] = from_float16_bits(half[i]);
  return value;
}
inline HalfVector to_float16(F32Vector value) {
  HalfVector half{};
  for (int i = 0; i < kVectorBytes / 4; ++i) half[i] = to_float16_bits(value[i]);
  return half;
}
inline HalfVector low_halves(U32Vector value) {
  return __builtin_convertvector(value, HalfVector);
}
inline U32Vector widened(HalfVector half) {
  return __builtin_convertvector(half, U32Vector);
}
#endif

/// The nearest bfloat16 (ties to even) in the upper halves; the lower halves are not cleared.
inline U32Vector round_to_upper_half(F32Vector value) {
  const U32Vector bits = (U32Vector)value;
  const U32Vector rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  // The sum would turn a NaN with a full mantissa into infinity or zero.
  return value == value ? rounded : (bits | 0x400000U);
}

// --- loads and stores; no alignment is asked for ---

inline F32Vector load(const float* from) {
  F32Vector value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
inline F64Vector load(const double* from) {
  F64Vector value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
inline F32Vector load(const Bfloat16* from) {
  HalfVector half;
  __builtin_memcpy(&half, from, sizeof half);
  return (F32Vector)(widened(half) << 16);
}
inline F32Vector load(const Float16* from) {
  HalfVector half;
  __builtin_memcpy(&half, from, sizeof half);
  return from_float16(half);
}

inline void store(float* to, F32Vector value) {
  __builtin_memcpy(to, &value, sizeof value);
}
inline void store(double* to, F64Vector value) {
  __builtin_memcpy(to, &value, sizeof value);
}
inline void store(Bfloat16* to, F32Vector value) {
  const HalfVector half = low_halves(round_to_upper_half(value) >> 16);
  __builtin_memcpy(to, &half, sizeof half);
}
inline void store(Float16* to, F32Vector value) {
  const HalfVector half = to_float16(value);
  __builtin_memcpy(to, &half, sizeof half);
}

/// The value that storing as T and loading again gives.
template <class T>
inline Vector<T> rounded_as(Vector<T> value) {
  return value;
}
template <>
inline F32Vector rounded_as<Bfloat16>(F32Vector value) {
  return (F32Vector)(round_to_upper_half(value) & 0xffff0000U);
}
template <>
inline F32Vector rounded_as<Float16>(F32Vector value) {
  return from_float16(to_float16(value));
}

// --- the end of a row that is no multiple of a vector ---

/// All lanes of a vector.
struct Whole {};
/// The first `count` lanes; a load fills the others with zeros.
struct Part {
  int64_t count;
};

template <class T>
inline auto load(const T* from, Whole /*lanes*/) {
  return load(from);
}
template <class T>
inline auto load(const T* from, Part lanes) {
  T padded[kLanes<T>] = {};
  __builtin_memcpy(padded, from, static_cast<uint64_t>(lanes.count) * sizeof(T));
  return load(padded);
}
template <class T>
inline void store(T* to, Vector<T> value, Whole /*lanes*/) {
  store(to, value);
}
template <class T>
inline void store(T* to, Vector<T> value, Part lanes) {
  T padded[kLanes<T>];
  store(padded, value);
  __builtin_memcpy(to, padded, static_cast<uint64_t>(lanes.count) * sizeof(T));
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

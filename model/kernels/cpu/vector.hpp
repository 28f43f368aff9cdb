// Vectors of the instruction set that the including file is compiled for: loads and stores of every
// element type, loops over rows, sums over lanes, exp. For range kernels only; TINYLLAMA_ISA is a
// namespace for each instruction set.
#pragma once

#include <stdint.h>

#include <utility>

#include "model/kernels/cpu/range_kernels.hpp"

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
/// How many elements of type T a Vector<T> holds.
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

// --- loops over a row in whole vectors and one part, and reductions over lanes ---

/// body(i, lanes) for i = 0, a vector of T, ...: lanes is Whole, at the end of `length` perhaps
/// Part.
template <class T, class Body>
[[gnu::always_inline]] inline void sweep(int64_t length, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes<T> <= length; i += kLanes<T>) body(i, Whole{});
  if (i < length) body(i, Part{length - i});
}

template <class V>
inline constexpr int kLanesOf = sizeof(V) / sizeof(V{}[0]);

/// Lane i of the result is lane `from(i)` of `a` with `b` behind it. Clang has the one builtin
/// function, GCC 11 the other.
template <class V, class From, int... lanes>
[[gnu::always_inline]] inline V picked(V a, V b, From from, std::integer_sequence<int, lanes...>) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, from(lanes)...);
#else
  decltype(a < b) mask{};
  ((mask[lanes] = static_cast<decltype(mask[0] + 0)>(from(lanes))), ...);
  return __builtin_shuffle(a, b, mask);
#endif
}
template <class V, class From>
[[gnu::always_inline]] inline V picked(V a, V b, From from) {
  return picked(a, b, from, std::make_integer_sequence<int, kLanesOf<V>>{});
}

/// Each lane holds what the lane `distance` away (a power of two) held.
template <int64_t distance, class V>
[[gnu::always_inline]] inline V exchanged(V v) {
  return picked(v, v, [](int i) { return i ^ static_cast<int>(distance); });
}

/// `combine` over all lanes, in halves: log2(lanes) steps and no element taken out on its own.
template <class T, int64_t distance, class Combine>
[[gnu::always_inline]] inline Vector<T> reduced(Vector<T> v, Combine combine) {
  v = combine(v, exchanged<distance>(v));
  if constexpr (distance > 1) return reduced<T, distance / 2>(v, combine);
  return v;
}

template <class T>
inline ComputeType<T> sum_of_lanes(Vector<T> v) {
  return reduced<T, kLanes<T> / 2>(v, [](auto a, auto b) { return a + b; })[0];
}

template <class T>
inline ComputeType<T> max_of_lanes(Vector<T> v) {
  return reduced<T, kLanes<T> / 2>(v, [](auto a, auto b) { return b > a ? b : a; })[0];
}

/// The sum of term(i, lanes) over a row. Four sums take turns, because one addition takes about
/// four cycles and two can begin in each.
template <class T, class Term>
[[gnu::always_inline]] inline ComputeType<T> sum_over(int64_t length, Term&& term) {
  constexpr int64_t lanes = kLanes<T>;
  Vector<T> a{}, b{}, c{}, d{};
  int64_t i = 0;
  for (; i + 4 * lanes <= length; i += 4 * lanes) {
    a += term(i, Whole{});
    b += term(i + lanes, Whole{});
    c += term(i + 2 * lanes, Whole{});
    d += term(i + 3 * lanes, Whole{});
  }
  for (; i + lanes <= length; i += lanes) a += term(i, Whole{});
  if (i < length) b += term(i, Part{length - i});
  return sum_of_lanes<T>((a + b) + (c + d));
}

// --- exp and square root ---

/// The larger and the smaller of each lane; b where one is NaN.
inline F32Vector vector_max(F32Vector a, F32Vector b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
inline F32Vector vector_min(F32Vector a, F32Vector b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}
inline F64Vector vector_max(F64Vector a, F64Vector b) {
  return a > b ? a : b;
}

/// x = n ln 2 + r with |r| <= ln(2) / 2: e^x = 2 e^r * 2^(n - 1), which, unlike 2^n, is a float32
/// up to the largest e^x. Below 2^-125 the factor is 0: results that small are flushed.
struct ExpParts {
  F32Vector n;
  F32Vector factor;
};
[[gnu::always_inline]] inline ExpParts exp_parts(F32Vector x) {
  // In [2^23, 2^24) floats are the integers: adding 1.5 * 2^23 rounds, and adding 126 more puts the
  // exponent of 2^(n - 1) into the low bits, from where a shift moves it to its place.
  constexpr float to_exponent = 0x1.8p23F + 126.0F;
  const F32Vector shifted = x * 1.44269504F + to_exponent;
  return {shifted - to_exponent, (F32Vector)((U32Vector)shifted << 23)};
}
/// Where e^x in float32 is infinity at one end and 0 at the other; NaN stays.
[[gnu::always_inline]] inline F32Vector within_exp_range(F32Vector x) {
  return vector_max(broadcast<float>(-87.5F), vector_min(broadcast<float>(89.0F), x));
}

/// e^x within 2 units in the last place, flushed to 0 below 2^-125; 0, infinity and NaN as in IEEE
/// 754. Cephes' polynomial of expf, doubled.
[[gnu::always_inline]] inline F32Vector vector_exp(F32Vector given) {
  const F32Vector x = within_exp_range(given);
  const auto [n, factor] = exp_parts(x);
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  const F32Vector r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  const F32Vector square = r * r;
  const F32Vector c54 = r * (2 * 1.9875691500e-4F) + 2 * 1.3981999507e-3F;
  const F32Vector c32 = r * (2 * 8.3334519073e-3F) + 2 * 4.1665795894e-2F;
  const F32Vector c10 = r * (2 * 1.6666665459e-1F) + 2 * 5.0000001201e-1F;
  const F32Vector p = (c54 * square + c32) * square + c10;
  return (p * square + (r * 2.0F + 2.0F)) * factor;
}

/// e^x within 2^-18, relatively: for results that are rounded to bfloat16 or float16.
/// Minimax polynomial of degree 4 on |r| <= ln(2) / 2, doubled.
[[gnu::always_inline]] inline F32Vector vector_exp_narrow(F32Vector given) {
  const F32Vector x = within_exp_range(given);
  const auto [n, factor] = exp_parts(x);
  const F32Vector r = x - n * 0.693147181F;
  const F32Vector square = r * r;
  const F32Vector c32 = r * (2 * 0.0414586061F) + 2 * 0.167909072F;
  const F32Vector c21 = r * c32 + 2 * 0.500043587F;
  const F32Vector c10 = r * (2 * 0.999963405F) + 2 * 0.999999261F;
  return (c21 * square + c10) * factor;
}

/// t = n + r with |r| <= 1/2: 2^t = 2^r * 2^n, a factor that is 0 below 2^-126.
[[gnu::always_inline]] inline ExpParts exp2_parts(F32Vector t) {
  constexpr float to_exponent = 0x1.8p23F + 127.0F;  // as above
  const F32Vector shifted = t + to_exponent;
  return {shifted - to_exponent, (F32Vector)((U32Vector)shifted << 23)};
}
/// 2^t for t up to 127, within 2 units in the last place, flushed to 0 below 2^-126; NaN stays.
/// Less work than vector_exp, for whom log2(e) costs nothing as part of a scale. Minimax polynomial
/// of the relative error.
[[gnu::always_inline]] inline F32Vector vector_exp2(F32Vector given) {
  const F32Vector t = vector_max(broadcast<float>(-127.0F), given);
  const auto [n, factor] = exp2_parts(t);
  const F32Vector r = t - n;
  F32Vector p = r * 1.53473201e-4F + 1.34001545e-3F;
  p = p * r + 9.61848424e-3F;
  p = p * r + 5.55032808e-2F;
  p = p * r + 0.240226469F;
  p = p * r + 0.693147206F;
  return (p * r + 1.0F) * factor;
}
/// The same within 2^-18, for results that are rounded to bfloat16 or float16.
[[gnu::always_inline]] inline F32Vector vector_exp2_narrow(F32Vector given) {
  const F32Vector t = vector_max(broadcast<float>(-127.0F), given);
  const auto [n, factor] = exp2_parts(t);
  const F32Vector r = t - n;
  F32Vector p = r * 9.57010191e-3F + 5.59178603e-2F;
  p = p * r + 0.240247448F;
  p = p * r + 0.693121815F;
  return (p * r + 0.999999261F) * factor;
}

/// float64 serves proofs, not speed.
inline F64Vector vector_exp(F64Vector x) {
  F64Vector result{};
  for (int i = 0; i < kVectorBytes / 8; ++i) result[i] = __builtin_exp(x[i]);
  return result;
}
inline F64Vector vector_exp2(F64Vector t) {
  F64Vector result{};
  for (int i = 0; i < kVectorBytes / 8; ++i) result[i] = __builtin_exp2(t[i]);
  return result;
}

inline F32Vector vector_sqrt(F32Vector x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#elif defined(__x86_64__)
  return _mm_sqrt_ps(x);
#else
  for (int i = 0; i < kVectorBytes / 4; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

inline F64Vector vector_sqrt(F64Vector x) {
  for (int i = 0; i < kVectorBytes / 8; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

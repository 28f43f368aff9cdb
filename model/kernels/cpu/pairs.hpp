// bfloat16 two vectors at a time. Read as 32-bit integers, 2 n bfloat16 hold the even elements in
// lower halves and the odd ones in upper halves: a shift and a mask make float32 vectors of them,
// where widening element by element crosses lanes and costs twice as much; the way back is alike.
#pragma once

#include "model/kernels/cpu/vector.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {

/// 2 n elements of a row, n lanes each.
struct EvenOdd {
  F32Vector even, odd;
};

/// As Whole, for a bfloat16 row's next 2 n elements. Float32 buffers that accompany such a row
/// (sums, scratch) hold them in this order, the even ones first.
struct Pairs {};
inline constexpr int64_t kPairLanes = 2 * kLanes<float>;

inline EvenOdd operator-(EvenOdd a) {
  return {-a.even, -a.odd};
}
inline EvenOdd operator+(EvenOdd a, EvenOdd b) {
  return {a.even + b.even, a.odd + b.odd};
}
inline EvenOdd operator-(EvenOdd a, EvenOdd b) {
  return {a.even - b.even, a.odd - b.odd};
}
inline EvenOdd operator*(EvenOdd a, EvenOdd b) {
  return {a.even * b.even, a.odd * b.odd};
}
inline EvenOdd operator/(EvenOdd a, EvenOdd b) {
  return {a.even / b.even, a.odd / b.odd};
}
inline EvenOdd operator+(EvenOdd a, float x) {
  return {a.even + x, a.odd + x};
}
inline EvenOdd operator-(EvenOdd a, float x) {
  return {a.even - x, a.odd - x};
}
inline EvenOdd operator*(EvenOdd a, float x) {
  return {a.even * x, a.odd * x};
}
inline EvenOdd operator+(float x, EvenOdd a) {
  return {x + a.even, x + a.odd};
}
inline EvenOdd operator-(float x, EvenOdd a) {
  return {x - a.even, x - a.odd};
}
inline EvenOdd operator*(float x, EvenOdd a) {
  return {x * a.even, x * a.odd};
}
inline EvenOdd operator/(float x, EvenOdd a) {
  return {x / a.even, x / a.odd};
}
inline EvenOdd& operator+=(EvenOdd& a, EvenOdd b) {
  return a = a + b;
}

/// Rounds to the upper half as round_to_upper_half does, but for NaNs with a full mantissa: here
/// each stems from a bfloat16 or is the processor's own, and has an empty lower half.
inline U32Vector round_pair_half(F32Vector value) {
  const U32Vector bits = (U32Vector)value;
  return bits + 0x7fffU + ((bits >> 16) & 1U);
}

inline EvenOdd load(const Bfloat16* from, Pairs /*lanes*/) {
  U32Vector both;
  __builtin_memcpy(&both, from, sizeof both);
  return {(F32Vector)(both << 16), (F32Vector)(both & 0xffff0000U)};
}
inline void store(Bfloat16* to, EvenOdd value, Pairs /*lanes*/) {
  const U32Vector even = round_pair_half(value.even) >> 16;
  const U32Vector odd = round_pair_half(value.odd);
#if defined(__AVX2__) && !defined(__AVX512F__)
  const U32Vector both = (U32Vector)_mm256_blend_epi16((__m256i)even, (__m256i)odd, 0xaa);
#else
  const U32Vector both = even | (odd & 0xffff0000U);
#endif
  __builtin_memcpy(to, &both, sizeof both);
}
inline EvenOdd load(const float* from, Pairs /*lanes*/) {
  return {load(from), load(from + kLanes<float>)};
}
inline void store(float* to, EvenOdd value, Pairs /*lanes*/) {
  store(to, value.even);
  store(to + kLanes<float>, value.odd);
}

template <class T>
inline EvenOdd rounded_as(EvenOdd value) {
  return {(F32Vector)(round_pair_half(value.even) & 0xffff0000U),
          (F32Vector)(round_pair_half(value.odd) & 0xffff0000U)};
}

/// What accumulates the lanes of either kind.
inline F32Vector folded(EvenOdd value) {
  return value.even + value.odd;
}
inline F32Vector folded(F32Vector value) {
  return value;
}
inline F64Vector folded(F64Vector value) {
  return value;
}

inline F32Vector folded_max(EvenOdd value) {
  return vector_max(value.even, value.odd);
}
inline F32Vector folded_max(F32Vector value) {
  return value;
}
inline F64Vector folded_max(F64Vector value) {
  return value;
}

inline EvenOdd vector_exp(EvenOdd x) {
  return {vector_exp(x.even), vector_exp(x.odd)};
}
inline EvenOdd vector_exp_narrow(EvenOdd x) {
  return {vector_exp_narrow(x.even), vector_exp_narrow(x.odd)};
}
inline EvenOdd vector_sqrt(EvenOdd x) {
  return {vector_sqrt(x.even), vector_sqrt(x.odd)};
}

template <class T>
struct IsBfloat16 {
  static constexpr bool value = false;
};
template <>
struct IsBfloat16<Bfloat16> {
  static constexpr bool value = true;
};

/// As sweep(), with Pairs before it where T is bfloat16: then the body's vectors are EvenOdd.
template <class T, class Body>
[[gnu::always_inline]] inline void sweep_pairs(int64_t length, Body&& body) {
  int64_t i = 0;
  if constexpr (IsBfloat16<T>::value) {
    for (; i + kPairLanes <= length; i += kPairLanes) body(i, Pairs{});
  }
  for (; i + kLanes<T> <= length; i += kLanes<T>) body(i, Whole{});
  if (i < length) body(i, Part{length - i});
}

/// The sum of term(i, lanes) over a row, which sweep_pairs divides.
template <class T, class Term>
[[gnu::always_inline]] inline ComputeType<T> sum_over_pairs(int64_t length, Term&& term) {
  int64_t i = 0;
  ComputeType<T> of_pairs = 0;
  if constexpr (IsBfloat16<T>::value) {
    EvenOdd a{}, b{};
    for (; i + 2 * kPairLanes <= length; i += 2 * kPairLanes) {
      a += term(i, Pairs{});
      b += term(i + kPairLanes, Pairs{});
    }
    if (i + kPairLanes <= length) {
      a += term(i, Pairs{});
      i += kPairLanes;
    }
    of_pairs = sum_of_lanes<T>(folded(a + b));
  }
  return of_pairs +
         sum_over<T>(length - i, [&](int64_t k, auto lanes) { return term(i + k, lanes); });
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

// exp and square root of vectors.
#pragma once

#include "model/kernels/cpu/vector.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {

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

/// float64 serves proofs, not speed.
inline F64Vector vector_exp(F64Vector x) {
  F64Vector result{};
  for (int i = 0; i < kVectorBytes / 8; ++i) result[i] = __builtin_exp(x[i]);
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

#include "benchmarks/instruments/triad.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tinyllama::instruments {
namespace {

using Input = std::span<const float>;

// Inlined into functions for several instruction sets, so that each gets its own vectorised copy.
[[gnu::always_inline]] inline void triad_body(std::span<float> a, Input b, Input c, float s) {
  float* __restrict to = a.data();
  const float* __restrict from_b = b.data();
  const float* __restrict from_c = c.data();
  for (size_t i = 0; i < a.size(); ++i) to[i] = from_b[i] + s * from_c[i];
}

[[gnu::noinline]] void triad_baseline(std::span<float> a, Input b, Input c, float s) {
  triad_body(a, b, c, s);
}

#ifdef __x86_64__
[[gnu::noinline, gnu::target("avx2,fma")]] void triad_avx2(std::span<float> a, Input b, Input c,
                                                           float s) {
  triad_body(a, b, c, s);
}

[[gnu::noinline, gnu::target("avx512f,prefer-vector-width=512")]] void triad_avx512(
    std::span<float> a, Input b, Input c, float s) {
  triad_body(a, b, c, s);
}

/// Streaming stores leave the overwritten lines unread: three transfers where ordinary stores need
/// four.
[[gnu::noinline]] void triad_streaming(std::span<float> a, Input b, Input c, float s) {
  const __m128 factor = _mm_set1_ps(s);
  constexpr size_t lanes = 4;
  for (size_t i = 0; i < a.size(); i += lanes) {
    const __m128 scaled = _mm_mul_ps(factor, _mm_load_ps(&c[i]));
    _mm_stream_ps(&a[i], _mm_add_ps(_mm_load_ps(&b[i]), scaled));
  }
  _mm_sfence();
}
#endif

}  // namespace

Triad triad_with_ordinary_stores() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return {"AVX-512, ordinary stores", &triad_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"AVX2, ordinary stores", &triad_avx2};
  }
#endif
  return {"ordinary stores", &triad_baseline};
}

std::vector<Triad> triads_for_memory() {
  std::vector<Triad> triads{triad_with_ordinary_stores()};
#ifdef __x86_64__
  triads.push_back({"streaming stores", &triad_streaming});
#endif
  return triads;
}

}  // namespace tinyllama::instruments

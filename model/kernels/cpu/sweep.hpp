// Loops over a row in whole vectors and one part, and reductions over lanes.
#pragma once

#include "model/kernels/cpu/vector.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {

/// body(i, lanes) for i = 0, a vector of T, ...: lanes is Whole, at the end of `length` perhaps
/// Part.
template <class T, class Body>
[[gnu::always_inline]] inline void sweep(int64_t length, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes<T> <= length; i += kLanes<T>) body(i, Whole{});
  if (i < length) body(i, Part{length - i});
}

/// Each lane holds what the lane `distance` away (a power of two) held.
template <int64_t distance, class V, class Mask>
[[gnu::always_inline]] inline V exchanged(V v, Mask mask) {
  for (uint64_t i = 0; i < sizeof(V) / sizeof(v[0]); ++i) mask[i] = static_cast<int>(i ^ distance);
  return __builtin_shuffle(v, mask);
}
template <int64_t distance>
[[gnu::always_inline]] inline F32Vector exchanged(F32Vector v) {
  return exchanged<distance>(v, I32Vector{});
}
template <int64_t distance>
[[gnu::always_inline]] inline F64Vector exchanged(F64Vector v) {
  return exchanged<distance>(v, I64Vector{});
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

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

// Register tiles, of which every matrix multiplication here consists, and how their operands are
// packed.
#pragma once

#include "model/kernels/cpu/pairs.hpp"
#include "model/kernels/cpu/vector.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {

/// Rows and columns of a register tile: as many sums in flight as hide the latency of a
/// multiply-add, and as few as the registers hold.
inline constexpr int64_t kTileRows = kVectorBytes == 64 ? 8 : 4;
template <class C>
inline constexpr int64_t kTileColumns = 2 * kLanes<C>;

inline int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// --- steps ---

/// What a tile's operands consist of, a step of its depth each: a number or, where the processor
/// multiplies bfloat16 in pairs, two numbers that follow each other along the depth, the first in
/// the lower half.
template <class T>
struct StepOf {
  using Type = ComputeType<T>;
};
#if defined(__AVX512BF16__)
template <>
struct StepOf<Bfloat16> {
  using Type = uint32_t;
};
#endif
template <class T>
using Step = typename StepOf<T>::Type;
template <class E>
inline constexpr bool kIsPaired = false;
template <>
inline constexpr bool kIsPaired<uint32_t> = true;
template <class T>
inline constexpr int64_t kStepDepth = kIsPaired<Step<T>> ? 2 : 1;

inline U32Vector load(const uint32_t* from) {
  U32Vector value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
inline void store(uint32_t* to, U32Vector value) {
  __builtin_memcpy(to, &value, sizeof value);
}

/// A row's next kPairLanes elements as pairs, zeros beyond `count`.
inline U32Vector load_pairs(const Bfloat16* from, int64_t count) {
  U32Vector value{};
  if (count >= kPairLanes) {
    __builtin_memcpy(&value, from, sizeof value);
  } else if (count > 0) {
    __builtin_memcpy(&value, from, static_cast<uint64_t>(count) * sizeof(Bfloat16));
  }
  return value;
}

/// A row's next vector of steps, zeros beyond `count` elements.
template <class T>
[[gnu::always_inline]] inline auto load_steps(const T* from, int64_t count) {
  if constexpr (kIsPaired<Step<T>>) {
    return load_pairs(from, count);
  } else {
    if (count >= kLanes<T>) return load(from);
    return count > 0 ? load(from, Part{count}) : Vector<T>{};
  }
}

/// Pairs of 16 bits: half a vector of elements of `a` from element `of_a` on, each with its
/// counterpart from element `of_b` on, where b's are counted behind a's.
template <int64_t of_a, int64_t of_b>
[[gnu::always_inline]] inline U32Vector zipped(U32Vector a, U32Vector b) {
  typedef uint16_t U16Vector __attribute__((vector_size(kVectorBytes)));
  return (U32Vector)picked((U16Vector)a, (U16Vector)b, [](int i) {
    return static_cast<int>(i % 2 == 0 ? of_a : of_b) + i / 2;
  });
}

#if defined(__AVX512BF16__)
/// Two vectors as pairs: each element with its neighbour.
inline U32Vector narrowed(F32Vector first, F32Vector second) {
  return (U32Vector)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}
/// Two vectors as pairs: each element of the one with its counterpart in the other.
inline U32Vector interleaved(F32Vector lower, F32Vector upper) {
  const U32Vector both = narrowed(lower, upper);
  return zipped<0, kPairLanes / 2>(both, both);
}
#endif

/// A square of vectors becomes its transpose: in halves, quarters, ..., of which the two off the
/// diagonal change places.
template <int distance, class V, int lanes>
[[gnu::always_inline]] inline void transpose(V (&rows)[lanes]) {
  constexpr auto upper = [](int i) { return (i & distance) != 0 ? lanes + i - distance : i; };
  constexpr auto lower = [](int i) { return (i & distance) != 0 ? lanes + i : i + distance; };
  for (int i = 0; i < lanes; ++i) {
    if ((i & distance) != 0) continue;
    const V a = rows[i], b = rows[i + distance];
    rows[i] = picked(a, b, upper);
    rows[i + distance] = picked(a, b, lower);
  }
  if constexpr (distance > 1) transpose<distance / 2>(rows);
}

/// `count` rows of `depth` elements, `stride` apart, as `panels` panels of kTileColumns columns,
/// one behind the other: step k of row i of a panel at [k, i], zeros where there is nothing.
template <class T>
inline void pack_panels(const T* from, int64_t stride, int64_t count, int64_t depth, Step<T>* to,
                        int64_t panels, int64_t steps) {
  constexpr int64_t columns = kTileColumns<ComputeType<T>>;
  constexpr int64_t lanes = kLanes<T>;
  for (int64_t panel = 0; panel < panels; ++panel) {
    for (int64_t k = 0; k < steps; k += lanes) {
      const int64_t whole = steps - k < lanes ? steps - k : lanes;
      for (int64_t first = 0; first < columns; first += lanes) {
        const int64_t row = panel * columns + first;
        decltype(load_steps(from, 0)) square[lanes] = {};
        for (int64_t i = 0; i < lanes && row + i < count; ++i) {
          const int64_t element = k * kStepDepth<T>;
          square[i] = load_steps(from + (row + i) * stride + element, depth - element);
        }
        transpose<lanes / 2>(square);
        for (int64_t i = 0; i < whole; ++i)
          store(to + (panel * steps + k + i) * columns + first, square[i]);
      }
    }
  }
}

// --- tiles ---

template <class V>
[[gnu::always_inline]] inline void add_product(V& sum, V a, V b) {
  sum += a * b;
}
#if defined(__AVX512BF16__)
[[gnu::always_inline]] inline void add_product(F32Vector& sum, U32Vector a, U32Vector b) {
  sum = (F32Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#endif
[[gnu::always_inline]] inline F32Vector every_lane(float value) {
  return broadcast<float>(value);
}
[[gnu::always_inline]] inline F64Vector every_lane(double value) {
  return broadcast<double>(value);
}
[[gnu::always_inline]] inline U32Vector every_lane(uint32_t value) {
  return value - U32Vector{};
}

/// A matrix whose element (i, k) is at data[i * row_stride + k * column_stride].
template <class E>
struct Strided {
  const E* data;
  int64_t row_stride;
  int64_t column_stride;
};

/// Adds a [kTileRows, steps] b [steps, two vectors], rows of b `b_stride` apart.
template <class E, class V>
[[gnu::always_inline]] inline void add_tile(int64_t steps, Strided<E> a, const E* b,
                                            int64_t b_stride, V (&sums)[kTileRows][2]) {
  for (int64_t k = 0; k < steps; ++k) {
    const auto b0 = load(b + k * b_stride);
    const auto b1 = load(b + k * b_stride + kVectorBytes / int64_t{sizeof(E)});
    for (int64_t i = 0; i < kTileRows; ++i) {
      const auto value = every_lane(a.data[i * a.row_stride + k * a.column_stride]);
      add_product(sums[i][0], value, b0);
      add_product(sums[i][1], value, b1);
    }
  }
}

/// c [kTileRows, two vectors] = a b, or added to c.
template <class C, class E>
[[gnu::always_inline]] inline void register_tile(int64_t steps, Strided<E> a, const E* b,
                                                 int64_t b_stride, C* c, int64_t c_stride,
                                                 bool accumulate) {
  using V = Vector<C>;
  V sums[kTileRows][2];
  for (int64_t i = 0; i < kTileRows; ++i) {
    sums[i][0] = accumulate ? load(c + i * c_stride) : V{};
    sums[i][1] = accumulate ? load(c + i * c_stride + kLanes<C>) : V{};
  }
  add_tile(steps, a, b, b_stride, sums);
  for (int64_t i = 0; i < kTileRows; ++i) {
    store(c + i * c_stride, sums[i][0]);
    store(c + i * c_stride + kLanes<C>, sums[i][1]);
  }
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

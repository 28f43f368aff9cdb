// What both directions of attention do with tiles of queries, keys and values.
#pragma once

#include "model/kernels/cpu/tiles.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {

// --- multiplication of small matrices that lie in scratch memory ---

/// A matrix [steps, columns] as the right operand: rows, or panels of kTileColumns columns that lie
/// one behind the other, so that a register tile reads straight on.
template <class E>
struct RightOperand {
  const E* data;
  int64_t row_stride;
  int64_t column_step;  // from the first element of one column to that of the next panel's, / panel

  static RightOperand rows(const E* data, int64_t stride) { return {data, stride, 1}; }
  static RightOperand panels(const E* data, int64_t steps) {
    return {data, 2 * kVectorBytes / int64_t{sizeof(E)}, steps};
  }
};

/// c [rows, columns] = a [rows, steps] b [steps, columns], or added to c. Rows of c are contiguous;
/// `rows` and `columns` are multiples of kTileRows and kTileColumns.
template <class C, class E>
inline void tile_gemm(int64_t rows, int64_t columns, int64_t steps, Strided<E> a, RightOperand<E> b,
                      C* c, int64_t c_stride, bool accumulate) {
  for (int64_t j = 0; j < columns; j += kTileColumns<C>) {
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const Strided<E> a_rows{a.data + i * a.row_stride, a.row_stride, a.column_stride};
      register_tile(steps, a_rows, b.data + j * b.column_step, b.row_stride, c + i * c_stride + j,
                    c_stride, accumulate);
    }
  }
}

// --- operands ---

/// Queries that a score tile covers. Scores are computed up to the last column that any of them
/// may see, so that half a tile a row is wasted on masked ones.
inline constexpr int64_t kQueryTile = kAttentionQueryTile;

/// Scores are multiplied by scale log2(e) on their way into a power of 2, not of e.
inline constexpr double kLog2E = 1.4426950408889634;

/// 2^t, exact enough for a probability that is stored as T.
template <class T>
[[gnu::always_inline]] inline Vector<T> score_exp2(Vector<T> t) {
  if constexpr (sizeof(T) == 2) return vector_exp2_narrow(t);
  return vector_exp2(t);
}

/// [rows, width] of type T, rows `stride` apart, as an operand whose depth is the width: [padded
/// rows, padded width / depth of a step], zeros where there is nothing.
template <class T>
inline void pack(const T* from, int64_t stride, int64_t rows, int64_t width, Step<T>* to,
                 int64_t padded_rows, int64_t padded_width) {
  for (int64_t row = 0; row < padded_rows; ++row) {
    const T* in = from + row * stride;
    Step<T>* out = to + row * padded_width / kStepDepth<T>;
    const int64_t filled = row < rows ? width : 0;
    for (int64_t i = 0; i < padded_width; i += kLanes<T> * kStepDepth<T>)
      store(out + i / kStepDepth<T>, load_steps(in + i, filled - i));
  }
}

/// What pack() made, [rows, width], as an operand whose depth is the rows: itself or, where steps
/// are pairs, [rows / 2, width] in `to`. There each kPairLanes columns have the even ones first,
/// and so have the results of multiplying by it, for unpack() to undo.
template <class T>
inline const Step<T>* by_rows(const Step<T>* packed, int64_t rows, int64_t width, Step<T>* to) {
  if constexpr (kIsPaired<Step<T>>) {
    for (int64_t row = 0; row < rows; row += 2) {
      const uint32_t* in = packed + row * width / 2;
      uint32_t* out = to + row / 2 * width;
      for (int64_t i = 0; i < width; i += kPairLanes) {
        const U32Vector a = load(in + i / 2);
        const U32Vector b = load(in + width / 2 + i / 2);
        store(out + i, (a & 0xffffU) | (b << 16));
        store(out + i + kLanes<float>, (a >> 16) | (b & 0xffff0000U));
      }
    }
    return to;
  } else {
    return packed;
  }
}

/// [rows, columns] of sums, rows `stride` apart, as a left operand whose depth is the columns; in
/// `to` where steps are pairs.
template <class T>
inline Strided<Step<T>> left_operand(const ComputeType<T>* sums, int64_t stride, int64_t rows,
                                     int64_t columns, Step<T>* to) {
  if constexpr (kIsPaired<Step<T>>) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < columns; i += kPairLanes) {
        const auto* from = sums + row * stride + i;
        store(to + (row * stride + i) / 2, narrowed(load(from), load(from + kLanes<float>)));
      }
    }
    return {to, stride / 2, 1};
  } else {
    return {sums, stride, 1};
  }
}

/// Its transpose as a left operand, whose depth is the rows.
template <class T>
inline Strided<Step<T>> transposed_left_operand(const ComputeType<T>* sums, int64_t stride,
                                                int64_t rows, int64_t columns, Step<T>* to) {
  if constexpr (kIsPaired<Step<T>>) {
    for (int64_t row = 0; row < rows; row += 2) {
      for (int64_t i = 0; i < columns; i += kLanes<float>) {
        const auto* from = sums + row * stride + i;
        store(to + row / 2 * stride + i, interleaved(load(from), load(from + stride)));
      }
    }
    return {to, 1, stride};
  } else {
    return {sums, 1, stride};
  }
}

/// Rows of sums times `factor` as type T, their columns as by_rows() orders them.
template <class T>
inline void unpack(const ComputeType<T>* from, int64_t from_stride, int64_t rows, int64_t width,
                   ComputeType<T> factor, T* to, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row, from += from_stride, to += stride) {
    if constexpr (kIsPaired<Step<T>>) {
      for (int64_t i = 0; i < width; i += kPairLanes) {
        const EvenOdd value = load(from + i, Pairs{}) * factor;
        if (i + kPairLanes <= width) {
          store(to + i, value, Pairs{});
        } else {
          T padded[kPairLanes];
          store(padded, value, Pairs{});
          __builtin_memcpy(to + i, padded, static_cast<uint64_t>(width - i) * sizeof(T));
        }
      }
    } else {
      sweep<T>(width, [&](int64_t i, auto lanes) {
        store(to + i, load(from + i, lanes) * broadcast<T>(factor), lanes);
      });
    }
  }
}

/// Hands out pieces of a scratch buffer; with a null buffer it only adds up their sizes.
template <class C>
class Scratch {
 public:
  explicit Scratch(C* begin) : begin_(begin) {}
  C* take(int64_t elements) {
    C* piece = begin_ == nullptr ? nullptr : begin_ + taken_;
    taken_ += round_up(elements, 16);
    return piece;
  }
  template <class E>
  E* take_as(int64_t elements) {
    return reinterpret_cast<E*>(take(elements));
  }
  /// A piece for operands in pairs; no memory where operands are not paired.
  template <class E>
  E* take_paired(int64_t elements) {
    return take_as<E>(kIsPaired<E> ? elements : 0);
  }
  int64_t taken() const { return taken_; }

 private:
  C* begin_;
  int64_t taken_ = 0;
};

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

// What both directions of attention do with tiles of queries, keys and values.
#pragma once

#include "model/kernels/cpu/range_kernels.hpp"
#include "model/kernels/cpu/vector.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {

// --- multiplication of small matrices that lie in scratch memory ---

/// Rows and columns of a register tile: as many sums in flight as hide the latency of a
/// multiply-add, and as few as the registers hold.
inline constexpr int64_t kTileRows = kVectorBytes == 64 ? 8 : 4;
template <class C>
inline constexpr int64_t kTileColumns = 2 * kLanes<C>;

inline int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// A matrix whose element (i, k) is at data[i * row_stride + k * column_stride].
template <class C>
struct Strided {
  const C* data;
  int64_t row_stride;
  int64_t column_stride;
};

template <class C>
[[gnu::always_inline]] inline void register_tile(int64_t depth, Strided<C> a, const C* b,
                                                 int64_t b_stride, C* c, int64_t c_stride,
                                                 bool accumulate) {
  using V = Vector<C>;
  V sums[kTileRows][2];
  for (int64_t i = 0; i < kTileRows; ++i) {
    sums[i][0] = accumulate ? load(c + i * c_stride) : V{};
    sums[i][1] = accumulate ? load(c + i * c_stride + kLanes<C>) : V{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    const V b0 = load(b + k * b_stride);
    const V b1 = load(b + k * b_stride + kLanes<C>);
    for (int64_t i = 0; i < kTileRows; ++i) {
      const V value = broadcast<C>(a.data[i * a.row_stride + k * a.column_stride]);
      sums[i][0] += value * b0;
      sums[i][1] += value * b1;
    }
  }
  for (int64_t i = 0; i < kTileRows; ++i) {
    store(c + i * c_stride, sums[i][0]);
    store(c + i * c_stride + kLanes<C>, sums[i][1]);
  }
}

/// A matrix [depth, columns] as the right operand: rows, or panels of kTileColumns columns that lie
/// one behind the other, so that a register tile reads straight on.
template <class C>
struct RightOperand {
  const C* data;
  int64_t row_stride;
  int64_t column_step;  // from the first element of one column to that of the next panel's, / panel

  static RightOperand rows(const C* data, int64_t stride) { return {data, stride, 1}; }
  static RightOperand panels(const C* data, int64_t depth) {
    return {data, kTileColumns<C>, depth};
  }
};

/// c [rows, columns] = a [rows, depth] b [depth, columns], or added to c. Rows of c are contiguous;
/// `rows` and `columns` are multiples of kTileRows and kTileColumns.
template <class C>
inline void tile_gemm(int64_t rows, int64_t columns, int64_t depth, Strided<C> a, RightOperand<C> b,
                      C* c, int64_t c_stride, bool accumulate) {
  for (int64_t j = 0; j < columns; j += kTileColumns<C>) {
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const Strided<C> a_rows{a.data + i * a.row_stride, a.row_stride, a.column_stride};
      register_tile(depth, a_rows, b.data + j * b.column_step, b.row_stride, c + i * c_stride + j,
                    c_stride, accumulate);
    }
  }
}

// --- tiles of attention ---

/// Queries that a score tile covers. Scores are computed up to the last column that any of them
/// may see, so that half a tile a row is wasted on masked ones.
inline constexpr int64_t kQueryTile = kAttentionQueryTile;

/// [rows, width] of type T, rows `stride` apart, as compute type: [padded rows, padded width],
/// zeros where there is nothing.
template <class T>
inline void pack(const T* from, int64_t stride, int64_t rows, int64_t width, ComputeType<T>* to,
                 int64_t padded_rows, int64_t padded_width, ComputeType<T> scale) {
  for (int64_t row = 0; row < padded_rows; ++row) {
    ComputeType<T>* out = to + row * padded_width;
    const int64_t filled = row < rows ? width : 0;
    sweep<T>(filled, [&](int64_t i, auto lanes) {
      store(out + i, load(from + row * stride + i, lanes) * broadcast<T>(scale), lanes);
    });
    for (int64_t i = filled; i < padded_width; ++i) out[i] = 0;
  }
}

/// The transpose of what pack() made, [rows, width], as panels of columns: one panel a kTileColumns
/// rows. `rows` is a multiple of that.
template <class C>
inline void transpose_to_panels(const C* from, int64_t rows, int64_t width, C* to) {
  constexpr int64_t panel = kTileColumns<C>;
  for (int64_t first = 0; first < rows; first += panel) {
    const C* block = from + first * width;
    C* out = to + first * width;
    for (int64_t w = 0; w < width; ++w) {
      for (int64_t row = 0; row < panel; ++row) out[w * panel + row] = block[row * width + w];
    }
  }
}

/// Hands out pieces of a scratch buffer; of a null one only their sizes.
template <class C>
class Scratch {
 public:
  explicit Scratch(C* begin) : begin_(begin) {}
  C* take(int64_t elements) {
    C* piece = begin_ == nullptr ? nullptr : begin_ + taken_;
    taken_ += round_up(elements, 16);
    return piece;
  }
  int64_t taken() const { return taken_; }

 private:
  C* begin_;
  int64_t taken_ = 0;
};

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

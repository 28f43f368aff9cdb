// What both directions of attention do with tiles of queries, keys and values.
#pragma once

#include "model/kernels/cpu/range_kernels.hpp"
#include "model/kernels/cpu/sweep.hpp"
#include "model/kernels/cpu/tile_product.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {

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

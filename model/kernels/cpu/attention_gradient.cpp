// Causal attention, backward: scores are computed again from the saved log-sum-exp, tile by tile.
// With P the probabilities and dO the context's gradient: dV = P^T dO, dP = dO V^T,
// dS = P (dP - delta) with delta the row sums of dO * O, dQ = scale dS K, dK = scale dS^T Q
// (Dao et al., "FlashAttention", 2022, appendix B).
#include "model/kernels/cpu/attention_tiles.hpp"
#include "model/kernels/cpu/table.hpp"
#include "model/kernels/cpu/vector.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {
namespace {

constexpr int64_t kKeyTile = 64;

template <class T>
class BackwardUnit {
  using C = ComputeType<T>;

 public:
  BackwardUnit(const AttentionGradientRows<T>& task, C* scratch)
      : t_(task),
        width_(round_up(task.head_dim, kTileColumns<C>)),
        group_(task.heads / task.kv_heads) {
    Scratch<C> pieces(scratch);
    const int64_t padded_seq = round_up(task.seq, kQueryTile);
    q_gradients_ = pieces.take(group_ * padded_seq * width_);
    deltas_ = pieces.take(group_ * padded_seq);
    keys_ = pieces.take(kKeyTile * width_);
    keys_t_ = pieces.take(kKeyTile * width_);
    values_ = pieces.take(kKeyTile * width_);
    values_t_ = pieces.take(kKeyTile * width_);
    k_gradient_ = pieces.take(kKeyTile * width_);
    v_gradient_ = pieces.take(kKeyTile * width_);
    queries_ = pieces.take(kQueryTile * width_);
    out_gradient_ = pieces.take(kQueryTile * width_);
    p_ = pieces.take(kQueryTile * kKeyTile);
    ds_ = pieces.take(kQueryTile * kKeyTile);
    q_stride_ = padded_seq * width_;
    delta_stride_ = padded_seq;
    size_ = pieces.taken();
  }

  int64_t scratch_size() const { return size_; }

  /// The gradients of one KV head's keys and values, and of the queries that share it.
  void run(int64_t batch, int64_t kv_head) {
    for (int64_t g = 0; g < group_; ++g) compute_deltas(batch, kv_head * group_ + g, g);
    for (int64_t i = 0; i < group_ * q_stride_; ++i) q_gradients_[i] = 0;
    for (int64_t key = 0; key < t_.seq; key += kKeyTile) {
      const int64_t count = t_.seq - key < kKeyTile ? t_.seq - key : kKeyTile;
      load_key_tile(batch, kv_head, key, count);
      // Earlier queries see none of these keys.
      for (int64_t g = 0; g < group_; ++g) {
        for (int64_t q = key / kQueryTile * kQueryTile; q < t_.seq; q += kQueryTile)
          score_tile(batch, kv_head * group_ + g, g, q, key, count);
      }
      write(t_.k_gradient.at(batch, key, kv_head), t_.k_gradient.position_stride, k_gradient_,
            count, C{1});
      write(t_.v_gradient.at(batch, key, kv_head), t_.v_gradient.position_stride, v_gradient_,
            count, C{1});
    }
    // dK got its scale from the packed queries.
    for (int64_t g = 0; g < group_; ++g) {
      write(t_.q_gradient.at(batch, 0, kv_head * group_ + g), t_.q_gradient.position_stride,
            q_gradients_ + g * q_stride_, t_.seq, static_cast<C>(t_.scale));
    }
  }

 private:
  const T* context_row(const T* tensor, int64_t batch, int64_t position, int64_t head) const {
    return tensor + ((batch * t_.seq + position) * t_.heads + head) * t_.head_dim;
  }

  void compute_deltas(int64_t batch, int64_t head, int64_t g) {
    for (int64_t position = 0; position < t_.seq; ++position) {
      const T* out = context_row(t_.out, batch, position, head);
      const T* gradient = context_row(t_.out_gradient, batch, position, head);
      deltas_[g * delta_stride_ + position] = sum_over<T>(t_.head_dim, [&](int64_t i, auto lanes) {
        return load(out + i, lanes) * load(gradient + i, lanes);
      });
    }
  }

  void load_key_tile(int64_t batch, int64_t kv_head, int64_t key, int64_t count) {
    pack(t_.k.at(batch, key, kv_head), t_.k.position_stride, count, t_.head_dim, keys_, kKeyTile,
         width_, C{1});
    transpose_to_panels(keys_, kKeyTile, width_, keys_t_);
    pack(t_.v.at(batch, key, kv_head), t_.v.position_stride, count, t_.head_dim, values_, kKeyTile,
         width_, C{1});
    transpose_to_panels(values_, kKeyTile, width_, values_t_);
    for (int64_t i = 0; i < kKeyTile * width_; ++i) k_gradient_[i] = v_gradient_[i] = 0;
  }

  void score_tile(int64_t batch, int64_t head, int64_t g, int64_t q, int64_t key, int64_t count) {
    const int64_t rows = t_.seq - q < kQueryTile ? t_.seq - q : kQueryTile;
    const int64_t seen = q + rows - key;  // keys of the tile that the last query sees
    const int64_t columns = round_up(seen < count ? seen : count, kTileColumns<C>);
    pack(t_.q.at(batch, q, head), t_.q.position_stride, rows, t_.head_dim, queries_, kQueryTile,
         width_, static_cast<C>(t_.scale));
    pack(context_row(t_.out_gradient, batch, q, head), t_.heads * t_.head_dim, rows, t_.head_dim,
         out_gradient_, kQueryTile, width_, C{1});
    tile_gemm<C>(kQueryTile, columns, width_, {queries_, width_, 1},
                 RightOperand<C>::panels(keys_t_, width_), p_, kKeyTile, false);
    tile_gemm<C>(kQueryTile, columns, width_, {out_gradient_, width_, 1},
                 RightOperand<C>::panels(values_t_, width_), ds_, kKeyTile, false);
    const C* log_sum_exp = t_.log_sum_exp + (batch * t_.heads + head) * t_.seq;
    for (int64_t row = 0; row < kQueryTile; ++row) {
      const int64_t visible =
          row < rows ? (q + row + 1 - key < columns ? q + row + 1 - key : columns) : 0;
      score_row(row, visible, columns, row < rows ? log_sum_exp[q + row] : C{0},
                deltas_[g * delta_stride_ + q + (row < rows ? row : 0)], q + row == 0);
    }
    // Rows are padded to the query tile with zeros, columns beyond the last key hold zeros.
    tile_gemm<C>(columns, width_, kQueryTile, {p_, 1, kKeyTile},
                 RightOperand<C>::rows(out_gradient_, width_), v_gradient_, width_, true);
    // The scale is in the packed queries already.
    tile_gemm<C>(columns, width_, kQueryTile, {ds_, 1, kKeyTile},
                 RightOperand<C>::rows(queries_, width_), k_gradient_, width_, true);
    tile_gemm<C>(kQueryTile, width_, columns, {ds_, kKeyTile, 1},
                 RightOperand<C>::rows(keys_, width_), q_gradients_ + g * q_stride_ + q * width_,
                 width_, true);
  }

  // Scores become probabilities, and their gradients those of the scores; 0 where masked.
  void score_row(int64_t row, int64_t visible, int64_t columns, C log_sum_exp, C delta,
                 bool is_first_query) {
    C* p = p_ + row * kKeyTile;
    C* ds = ds_ + row * kKeyTile;
    const int64_t filled = visible > 0 ? visible : 0;
    for (int64_t i = 0; i < filled; i += kLanes<C>) {
      const Vector<C> value = vector_exp(load(p + i) - broadcast<C>(log_sum_exp));
      store(p + i, value);
      store(ds + i, value * (load(ds + i) - broadcast<C>(delta)));
    }
    // Also what a whole vector computed beyond the last visible key.
    for (int64_t i = filled; i < columns; ++i) p[i] = ds[i] = 0;
    // The probability of an only key is 1 whatever its score: no gradient, not even a rounding.
    if (is_first_query) ds[0] = 0;
  }

  void write(T* to, int64_t stride, const C* from, int64_t rows, C factor) {
    for (int64_t row = 0; row < rows; ++row) {
      sweep<T>(t_.head_dim, [&](int64_t i, auto lanes) {
        store(to + row * stride + i, load(from + row * width_ + i, lanes) * broadcast<T>(factor),
              lanes);
      });
    }
  }

  const AttentionGradientRows<T>& t_;
  int64_t width_;  // head_dim, padded
  int64_t group_;  // query heads of a KV head
  int64_t q_stride_;
  int64_t delta_stride_;
  int64_t size_;
  C* q_gradients_;   // [group, seq, width], summed over key tiles
  C* deltas_;        // [group, seq]
  C* keys_;          // [key tile, width]
  C* keys_t_;        // [width, key tile]
  C* values_;        // [key tile, width]
  C* values_t_;      // [width, key tile]
  C* k_gradient_;    // [key tile, width]
  C* v_gradient_;    // [key tile, width]
  C* queries_;       // [query tile, width], scaled
  C* out_gradient_;  // [query tile, width]
  C* p_;             // [query tile, key tile]
  C* ds_;            // [query tile, key tile]
};

template <class T>
int64_t attention_gradient_scratch(const AttentionGradientRows<T>& task) {
  return BackwardUnit<T>(task, nullptr).scratch_size();
}

template <class T>
void attention_gradient(const AttentionGradientRows<T>& task, ComputeType<T>* scratch,
                        int64_t begin, int64_t end) {
  BackwardUnit<T> unit(task, scratch);
  for (int64_t pair = begin; pair < end; ++pair)
    unit.run(pair / task.kv_heads, pair % task.kv_heads);
}

}  // namespace

void enter_attention_gradient(RangeKernels& table) {
  for_each_type(table, []<class T>(RangeKernelsOf<T>& kernels) {
    kernels.attention_gradient = attention_gradient<T>;
    kernels.attention_gradient_scratch = attention_gradient_scratch<T>;
  });
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

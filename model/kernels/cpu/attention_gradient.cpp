// Causal attention, backward: scores are computed again from the saved log-sum-exp, tile by tile.
// With P the probabilities and dO the context's gradient: dV = P^T dO, dP = dO V^T,
// dS = P (dP - delta) with delta the row sums of dO * O, dQ = scale dS K, dK = scale dS^T Q
// (Dao et al., "FlashAttention", 2022, appendix B).
#include "model/kernels/cpu/attention_tiles.hpp"
#include "model/kernels/cpu/table.hpp"
#include "model/kernels/cpu/vector.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {
namespace {

constexpr int64_t kKeyTile = 128;

template <class T>
class BackwardUnit {
  using C = ComputeType<T>;
  using E = Step<T>;

 public:
  BackwardUnit(const AttentionGradientRows<T>& task, C* scratch)
      : t_(task),
        width_(round_up(task.head_dim, kTileColumns<C>)),
        group_(task.heads / task.kv_heads) {
    Scratch<C> pieces(scratch);
    const int64_t padded_seq = round_up(task.seq, kQueryTile);
    q_gradients_ = pieces.take(group_ * padded_seq * width_);
    deltas_ = pieces.take(group_ * padded_seq);
    const auto take = [&](int64_t elements) { return pieces.template take_as<E>(elements); };
    const auto take_paired = [&](int64_t n) { return pieces.template take_paired<E>(n); };
    key_rows_ = take(kKeyTile * steps());
    key_pairs_ = take_paired(kKeyTile * steps());
    keys_t_ = take(kKeyTile * steps());
    values_t_ = take(kKeyTile * steps());
    k_gradient_ = pieces.take(kKeyTile * width_);
    v_gradient_ = pieces.take(kKeyTile * width_);
    queries_ = take(kQueryTile * steps());
    query_pairs_ = take_paired(kQueryTile * steps());
    out_gradient_ = take(kQueryTile * steps());
    out_gradient_pairs_ = take_paired(kQueryTile * steps());
    p_ = pieces.take(kQueryTile * kKeyTile);
    ds_ = pieces.take(kQueryTile * kKeyTile);
    pairs_ = take_paired(kQueryTile * kKeyTile / 2);
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
      // Earlier queries see none of these keys, nor do those whose window begins behind them.
      const int64_t behind = key + count - 1 + t_.window;
      const int64_t end = behind < t_.seq ? behind : t_.seq;
      for (int64_t g = 0; g < group_; ++g) {
        for (int64_t q = key / kQueryTile * kQueryTile; q < end; q += kQueryTile)
          score_tile(batch, kv_head * group_ + g, g, q, key, count);
      }
      unpack(k_gradient_, width_, count, t_.head_dim, scale(),
             t_.k_gradient.at(batch, key, kv_head), t_.k_gradient.position_stride);
      unpack(v_gradient_, width_, count, t_.head_dim, C{1}, t_.v_gradient.at(batch, key, kv_head),
             t_.v_gradient.position_stride);
    }
    for (int64_t g = 0; g < group_; ++g) {
      unpack(q_gradients_ + g * q_stride_, width_, t_.seq, t_.head_dim, scale(),
             t_.q_gradient.at(batch, 0, kv_head * group_ + g), t_.q_gradient.position_stride);
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
    const int64_t padded = round_up(count, kTileColumns<C>);
    const int64_t panels = padded / kTileColumns<C>;
    const T* k = t_.k.at(batch, key, kv_head);
    pack(k, t_.k.position_stride, count, t_.head_dim, key_rows_, padded, width_);
    pack_panels(k, t_.k.position_stride, count, t_.head_dim, keys_t_, panels, steps());
    keys_ = by_rows<T>(key_rows_, padded, width_, key_pairs_);
    const T* v = t_.v.at(batch, key, kv_head);
    pack_panels(v, t_.v.position_stride, count, t_.head_dim, values_t_, panels, steps());
    for (int64_t i = 0; i < padded * width_; ++i) k_gradient_[i] = v_gradient_[i] = 0;
  }

  void score_tile(int64_t batch, int64_t head, int64_t g, int64_t q, int64_t key, int64_t count) {
    const int64_t rows = t_.seq - q < kQueryTile ? t_.seq - q : kQueryTile;
    const int64_t seen = q + rows - key;  // keys of the tile that the last query sees
    const int64_t columns = round_up(seen < count ? seen : count, kTileColumns<C>);
    load_query_tile(batch, head, q, rows);
    tile_gemm<C, E>(kQueryTile, columns, steps(), {queries_, steps(), 1},
                    RightOperand<E>::panels(keys_t_, steps()), p_, kKeyTile, false);
    tile_gemm<C, E>(kQueryTile, columns, steps(), {out_gradient_, steps(), 1},
                    RightOperand<E>::panels(values_t_, steps()), ds_, kKeyTile, false);
    const C* log_sum_exp = t_.log_sum_exp + (batch * t_.heads + head) * t_.seq;
    for (int64_t row = 0; row < kQueryTile; ++row) {
      const int64_t visible =
          row < rows ? (q + row + 1 - key < columns ? q + row + 1 - key : columns) : 0;
      score_row(row, q + row + 1 - t_.window - key, visible, columns,
                row < rows ? log_sum_exp[q + row] : C{0},
                deltas_[g * delta_stride_ + q + (row < rows ? row : 0)],
                q + row == 0 || t_.window == 1);
    }
    // Rows are padded to the query tile with zeros, columns beyond the last key hold zeros.
    constexpr int64_t query_steps = kQueryTile / kStepDepth<T>;
    const E* query_rows = by_rows<T>(queries_, kQueryTile, width_, query_pairs_);
    const E* gradient_rows = by_rows<T>(out_gradient_, kQueryTile, width_, out_gradient_pairs_);
    tile_gemm<C, E>(columns, width_, query_steps,
                    transposed_left_operand<T>(p_, kKeyTile, kQueryTile, columns, pairs_),
                    RightOperand<E>::rows(gradient_rows, width_), v_gradient_, width_, true);
    tile_gemm<C, E>(columns, width_, query_steps,
                    transposed_left_operand<T>(ds_, kKeyTile, kQueryTile, columns, pairs_),
                    RightOperand<E>::rows(query_rows, width_), k_gradient_, width_, true);
    tile_gemm<C, E>(kQueryTile, width_, columns / kStepDepth<T>,
                    left_operand<T>(ds_, kKeyTile, kQueryTile, columns, pairs_),
                    RightOperand<E>::rows(keys_, width_), q_gradients_ + g * q_stride_ + q * width_,
                    width_, true);
  }

  void load_query_tile(int64_t batch, int64_t head, int64_t q, int64_t rows) {
    const T* queries = t_.q.at(batch, q, head);
    const T* gradient = context_row(t_.out_gradient, batch, q, head);
    const int64_t gradient_stride = t_.heads * t_.head_dim;
    pack(queries, t_.q.position_stride, rows, t_.head_dim, queries_, kQueryTile, width_);
    pack(gradient, gradient_stride, rows, t_.head_dim, out_gradient_, kQueryTile, width_);
  }

  // Scores become probabilities, and their gradients those of the scores; 0 where masked. Visible
  // are the keys from `first`, below 0 for all, up to `visible`.
  void score_row(int64_t row, int64_t first, int64_t visible, int64_t columns, C log_sum_exp,
                 C delta, bool sees_one_key) {
    C* p = p_ + row * kKeyTile;
    C* ds = ds_ + row * kKeyTile;
    const int64_t filled = visible > 0 ? visible : 0;
    const C score_scale = static_cast<C>(t_.scale * kLog2E);
    const C log2_sum_exp = log_sum_exp * static_cast<C>(kLog2E);
    for (int64_t i = 0; i < filled; i += kLanes<C>) {
      const Vector<C> value = score_exp2<T>(load(p + i) * score_scale - broadcast<C>(log2_sum_exp));
      store(p + i, value);
      store(ds + i, value * (load(ds + i) - broadcast<C>(delta)));
    }
    // Also what a whole vector computed beyond the last visible key.
    for (int64_t i = filled; i < columns; ++i) p[i] = ds[i] = 0;
    for (int64_t i = 0; i < first && i < columns; ++i) p[i] = ds[i] = 0;
    // The probability of an only key is 1 whatever its score: no gradient, not even a rounding.
    if (sees_one_key) {
      for (int64_t i = 0; i < filled && i < columns; ++i) ds[i] = 0;
    }
  }

  C scale() const { return static_cast<C>(t_.scale); }
  // That the width takes.
  int64_t steps() const { return width_ / kStepDepth<T>; }

  const AttentionGradientRows<T>& t_;
  int64_t width_;  // head_dim, padded
  int64_t group_;  // query heads of a KV head
  int64_t q_stride_;
  int64_t delta_stride_;
  int64_t size_;
  C* q_gradients_;  // [group, seq, width], summed over key tiles
  C* deltas_;       // [group, seq]
  E* key_rows_;     // [key tile, steps]
  E* key_pairs_;    // keys in pairs
  const E* keys_;   // [key tile / depth of a step, width], one of these
  E* keys_t_;       // [steps, key tile]
  E* values_t_;     // [steps, key tile]
  C* k_gradient_;   // [key tile, width]
  C* v_gradient_;   // [key tile, width]
  E* queries_;      // [query tile, steps]
  E* query_pairs_;
  E* out_gradient_;  // [query tile, steps]
  E* out_gradient_pairs_;
  C* p_;      // [query tile, key tile]
  C* ds_;     // [query tile, key tile]
  E* pairs_;  // one of these two as an operand
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

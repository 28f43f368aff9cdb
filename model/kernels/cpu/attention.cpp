// Causal attention, forward: tiles of queries against blocks of keys, with the softmax's maximum
// and sum carried from block to block (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018; Dao et al., "FlashAttention", 2022).
#include "model/kernels/cpu/attention_tiles.hpp"
#include "model/kernels/cpu/table.hpp"
#include "model/kernels/cpu/vector.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {
namespace {

// Keys of a block: its scores stay in the second-level cache.
constexpr int64_t kKeyBlock = 256;

template <class T>
class ForwardUnit {
  using C = ComputeType<T>;
  using E = Step<T>;

 public:
  ForwardUnit(const AttentionRows<T>& task, C* scratch)
      : t_(task), width_(round_up(task.head_dim, kTileColumns<C>)) {
    Scratch<C> pieces(scratch);
    const int64_t padded_seq = round_up(task.seq, kTileColumns<C>);
    keys_ = pieces.template take_as<E>(padded_seq * steps());
    value_rows_ = pieces.template take_as<E>(padded_seq * steps());
    value_pairs_ = pieces.template take_paired<E>(padded_seq * steps());
    queries_ = pieces.template take_as<E>(kQueryTile * steps());
    scores_ = pieces.take(kQueryTile * kKeyBlock);
    probabilities_ = pieces.template take_paired<E>(kQueryTile * kKeyBlock / 2);
    context_ = pieces.take(kQueryTile * width_);
    maxima_ = pieces.take(kQueryTile);
    old_maxima_ = pieces.take(kQueryTile);
    sums_ = pieces.take(kQueryTile);
    size_ = pieces.taken();
  }

  int64_t scratch_size() const { return size_; }

  /// The queries [first, last) of every head that shares a KV head.
  void run(int64_t batch, int64_t kv_head, int64_t first, int64_t last) {
    load_keys_and_values(batch, kv_head, last);
    const int64_t group = t_.heads / t_.kv_heads;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t q = first; q < last; q += kQueryTile) {
        const int64_t rows = last - q < kQueryTile ? last - q : kQueryTile;
        query_tile(batch, head, q, rows);
      }
    }
  }

 private:
  void load_keys_and_values(int64_t batch, int64_t kv_head, int64_t count) {
    const int64_t padded = round_up(count, kTileColumns<C>);
    const T* k = t_.k.at(batch, 0, kv_head);
    pack_panels(k, t_.k.position_stride, count, t_.head_dim, keys_, padded / kTileColumns<C>,
                steps());
    const T* v = t_.v.at(batch, 0, kv_head);
    pack(v, t_.v.position_stride, count, t_.head_dim, value_rows_, padded, width_);
    values_ = by_rows<T>(value_rows_, padded, width_, value_pairs_);
  }

  void query_tile(int64_t batch, int64_t head, int64_t q, int64_t rows) {
    pack(t_.q.at(batch, q, head), t_.q.position_stride, rows, t_.head_dim, queries_, kQueryTile,
         width_);
    const int64_t end = q + rows;  // keys that the last query sees
    // The first block begins where the first query's window does, at the panel before it: every
    // query of the tile sees some key of that block.
    static_assert(kQueryTile + kTileColumns<C> <= kKeyBlock);
    const int64_t before = q + 1 - t_.window;  // keys that none of them sees
    const int64_t begin = before > 0 ? before / kTileColumns<C> * kTileColumns<C> : 0;
    for (int64_t key = begin; key < end; key += kKeyBlock) {
      const int64_t count = end - key < kKeyBlock ? end - key : kKeyBlock;
      const int64_t columns = round_up(count, kTileColumns<C>);
      tile_gemm<C, E>(kQueryTile, columns, steps(), {queries_, steps(), 1},
                      RightOperand<E>::panels(keys_ + key * steps(), steps()), scores_, kKeyBlock,
                      false);
      // All maxima first: a row's exps would wait for its own.
      int64_t seen[kQueryTile];
      for (int64_t row = 0; row < kQueryTile; ++row) {
        const int64_t position = q + row - key;  // the query's own, among the block's keys
        const int64_t last = position + 1 < count ? position + 1 : count;
        seen[row] = row < rows && last > 0 ? last : 0;
        find_maximum(row, position + 1 - t_.window, seen[row], key == begin);
      }
      for (int64_t row = 0; row < kQueryTile; ++row)
        softmax_row(row, seen[row], columns, key == begin);
      const auto probabilities =
          left_operand<T>(scores_, kKeyBlock, kQueryTile, columns, probabilities_);
      tile_gemm<C, E>(kQueryTile, width_, columns / kStepDepth<T>, probabilities,
                      RightOperand<E>::rows(values_ + key * steps(), width_), context_, width_,
                      key > begin);
    }
    for (int64_t row = 0; row < rows; ++row) finish_row(batch, head, q + row, row);
  }

  // The largest score so far. Seen are the keys from `first`, below 0 for all, up to `seen`.
  void find_maximum(int64_t row, int64_t first, int64_t seen, bool is_first) {
    C* scores = scores_ + row * kKeyBlock;
    for (int64_t i = 0; i < first && i < seen; ++i) scores[i] = static_cast<C>(-__builtin_inf());
    // Whole vectors throughout: beyond the last visible key stands what becomes 0.
    const int64_t whole = round_up(seen, kLanes<C>);
    for (int64_t i = seen; i < whole; ++i) scores[i] = static_cast<C>(-__builtin_inf());
    old_maxima_[row] = is_first ? static_cast<C>(-__builtin_inf()) : maxima_[row];
    Vector<C> largest = broadcast<C>(old_maxima_[row]);
    for (int64_t i = 0; i < whole; i += kLanes<C>) largest = vector_max(load(scores + i), largest);
    maxima_[row] = max_of_lanes<C>(largest);
  }

  // Scores become exp(scale (score - largest so far)); what earlier blocks left is brought to that
  // scale.
  void softmax_row(int64_t row, int64_t seen, int64_t columns, bool is_first) {
    C* scores = scores_ + row * kKeyBlock;
    const int64_t whole = round_up(seen, kLanes<C>);
    const C scale = static_cast<C>(t_.scale * kLog2E);
    const C maximum = maxima_[row];
    Vector<C> sums{};
    for (int64_t i = 0; i < whole; i += kLanes<C>) {
      const Vector<C> e = score_exp2<T>((load(scores + i) - broadcast<C>(maximum)) * scale);
      store(scores + i, e);
      sums += e;
    }
    C sum = sum_of_lanes<C>(sums);
    for (int64_t i = whole; i < columns; ++i) scores[i] = 0;
    if (!is_first) {
      const C before = old_maxima_[row];
      const C shrink = maximum > before ? exp2_of((before - maximum) * scale) : C{1};
      sum += sums_[row] * shrink;
      C* context = context_ + row * width_;
      sweep<C>(width_, [&](int64_t i, auto lanes) {
        store(context + i, load(context + i, lanes) * broadcast<C>(shrink), lanes);
      });
    }
    sums_[row] = sum;
  }

  static C exp2_of(C value) { return vector_exp2(broadcast<C>(value))[0]; }

  void finish_row(int64_t batch, int64_t head, int64_t position, int64_t row) {
    T* out = t_.out + ((batch * t_.seq + position) * t_.heads + head) * t_.head_dim;
    unpack(context_ + row * width_, width_, 1, t_.head_dim, C{1} / sums_[row], out, t_.head_dim);
    const C log_sum = static_cast<C>(__builtin_log(static_cast<double>(sums_[row])));
    t_.log_sum_exp[(batch * t_.heads + head) * t_.seq + position] =
        maxima_[row] * static_cast<C>(t_.scale) + log_sum;
  }

  // That the width takes.
  int64_t steps() const { return width_ / kStepDepth<T>; }

  const AttentionRows<T>& t_;
  int64_t width_;  // head_dim, padded
  int64_t size_;
  E* keys_;           // [steps, seq], in panels of columns
  E* value_rows_;     // [seq, steps]
  E* value_pairs_;    // values in pairs
  const E* values_;   // [seq / depth of a step, width], one of these
  E* queries_;        // [query tile, steps]
  C* scores_;         // [query tile, key block]
  E* probabilities_;  // the same in pairs
  C* context_;        // [query tile, width]
  C* maxima_;         // [query tile], not scaled
  C* old_maxima_;     // before this block
  C* sums_;           // [query tile]
};

template <class T>
int64_t attention_scratch(const AttentionRows<T>& task) {
  return ForwardUnit<T>(task, nullptr).scratch_size();
}

template <class T>
void attention(const AttentionRows<T>& task, ComputeType<T>* scratch, int64_t begin, int64_t end) {
  ForwardUnit<T> unit(task, scratch);
  const int64_t parts = attention_query_parts(task.seq);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i % parts * kAttentionQueryPart;
    const int64_t last = first + kAttentionQueryPart;
    const int64_t pair = i / parts;
    unit.run(pair / task.kv_heads, pair % task.kv_heads, first, last < task.seq ? last : task.seq);
  }
}

}  // namespace

void enter_attention(RangeKernels& table) {
  for_each_type(table, []<class T>(RangeKernelsOf<T>& kernels) {
    kernels.attention = attention<T>;
    kernels.attention_scratch = attention_scratch<T>;
  });
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

// Matrix multiplication from packed panels (Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication", 2008), for depths of thousands: a tile's sums stay in registers over all
// of the depth. All panels of the right operand are packed once, for every thread; of the left one
// each thread packs a group of rows at a time, which stays in its second cache, or reads rows where
// they lie. With few rows it is the other way round: weights are read where they lie, and the
// product is computed as its transpose.
#include "model/kernels/cpu/table.hpp"
#include "model/kernels/cpu/tiles.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {
namespace {

/// Of a group of rows, a quarter of a second cache.
constexpr int64_t kGroupBytes = 256 * 1024;
/// How many rows of the right operand a row of the left one must spare for the transpose to pay:
/// pairs are packed faster, and stored half a line at a time (results/MEASURED.md).
template <class T>
constexpr int64_t kSparedRows = kIsPaired<Step<T>> ? 8 : 2;
/// Bytes of a cache's line.
constexpr int64_t kLine = 64;
/// Steps that are packed at a time where rows of memory are steps.
constexpr int64_t kPackedSteps = 8;

template <class T>
constexpr int64_t kPanel = kTileColumns<ComputeType<T>>;

int64_t parts(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

template <class T>
class Multiplication {
  using C = ComputeType<T>;
  using E = Step<T>;

 public:
  explicit Multiplication(const GemmTask<T>& task)
      : is_transposed_(is_better_transposed(task)),
        t_(is_transposed_ ? transposed(task) : task),
        is_readable_(is_readable(t_.left, t_.depth)),
        steps_(parts(t_.depth, kStepDepth<T>)),
        panel_(steps_ * kPanel<T>),
        panels_(parts(t_.right.count, kPanel<T>)),
        group_(group_panels() * kPanel<T>),
        groups_(parts(t_.left.count, group_)),
        splits_(splits_of_a_group()) {}

  GemmSizes sizes() const {
    return {panels_ * panel_ * int64_t{sizeof(E)},
            is_readable_ ? 0 : group_ / kPanel<T> * panel_ * int64_t{sizeof(E)},
            t_.right.has_depth_in_rows ? panels_ : parts(steps_, kPackedSteps), groups_ * splits_};
  }

  void pack_right(int64_t begin, int64_t end) const {
    const GemmOperand<T>& right = t_.right;
    if (right.has_depth_in_rows) {
      const int64_t first = begin * kPanel<T>;
      return pack_panels(right.data + first * right.stride, right.stride, right.count - first,
                         t_.depth, static_cast<E*>(t_.packed_right) + begin * panel_, end - begin,
                         steps_);
    }
    const int64_t last = end * kPackedSteps < steps_ ? end * kPackedSteps : steps_;
    pack_steps(right, begin * kPackedSteps, last, 0, right.count, t_.packed_right);
  }

  /// A unit: a group of rows against all panels or, for more threads than groups, some of them.
  void multiply(int64_t begin, int64_t end, void* packed) const {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit / splits_ * group_;
      const int64_t rows = t_.left.count - first < group_ ? t_.left.count - first : group_;
      const int64_t split = unit % splits_;
      const bool is_packed = unit > begin && split > 0;
      if (!is_readable_ && !is_packed) pack_group(first, rows, packed);
      for (int64_t panel = panels_ * split / splits_; panel < panels_ * (split + 1) / splits_;
           ++panel) {
        for (int64_t row = 0; is_transposed_ && row < rows; row += kLanes<C>)
          multiply_square(first + row, rows - row, panel);
        for (int64_t row = 0; !is_transposed_ && row < rows; row += kTileRows)
          multiply_tile(first, row, rows - row, panel, static_cast<const E*>(packed));
      }
    }
  }

 private:
  /// Where the left operand's rows, in place of the right one's, fill a panel and spare enough.
  static bool is_better_transposed(const GemmTask<T>& task) {
    const int64_t rows = task.left.count;
    return rows >= kPanel<T> && rows * kSparedRows<T> <= task.right.count && !task.sum &&
           is_readable(task.right, task.depth);
  }
  static GemmTask<T> transposed(GemmTask<T> task) {
    const GemmOperand<T> left = task.left;
    task.left = task.right;
    task.right = left;
    return task;
  }

  int64_t group_panels() const {
    const int64_t bytes = panel_ * int64_t{sizeof(E)};
    const int64_t fitting = bytes > 0 ? kGroupBytes / bytes : 1;
    // Two groups a thread, where there are as many panels, leave no thread without work for long.
    const int64_t fair = parts(t_.left.count, kPanel<T> * 2 * t_.threads);
    const int64_t panels = fitting < fair ? fitting : fair;
    return panels > 1 ? panels : 1;
  }

  /// So that every thread has two units, and three groups do not make two threads unequal.
  int64_t splits_of_a_group() const {
    const int64_t wanted = groups_ > 0 ? parts(2 * t_.threads, groups_) : 1;
    return wanted < panels_ ? wanted : (panels_ > 1 ? panels_ : 1);
  }

  /// Whether an operand is rows of steps as it is.
  static bool is_readable(const GemmOperand<T>& operand, int64_t depth) {
    if (!operand.has_depth_in_rows || sizeof(E) != sizeof(T) * kStepDepth<T>) return false;
    const auto address = reinterpret_cast<uintptr_t>(operand.data);
    return depth % kStepDepth<T> == 0 && operand.stride % kStepDepth<T> == 0 &&
           address % sizeof(E) == 0;
  }

  void pack_group(int64_t first, int64_t rows, void* packed) const {
    if (!t_.left.has_depth_in_rows) return pack_steps(t_.left, 0, steps_, first, rows, packed);
    pack_panels(t_.left.data + first * t_.left.stride, t_.left.stride, rows, t_.depth,
                static_cast<E*>(packed), parts(rows, kPanel<T>), steps_);
  }

  /// Some steps of the columns from `first` on, a few rows of memory at a time.
  void pack_steps(const GemmOperand<T>& operand, int64_t begin, int64_t end, int64_t first,
                  int64_t count, void* packed) const {
    for (int64_t few = begin; few < end; few += kPackedSteps) {
      for (int64_t column = 0; column < count; column += kPanel<T>) {
        E* panel = static_cast<E*>(packed) + column / kPanel<T> * panel_;
        for (int64_t step = few; step < end && step < few + kPackedSteps; ++step) {
          pack_step(operand.data + step * kStepDepth<T> * operand.stride + first + column,
                    operand.stride, step, count - column, panel + step * kPanel<T>);
        }
      }
    }
  }

  /// The next kPanel columns of one step, whose row is `from`; zeros from `count` on.
  void pack_step(const T* from, int64_t stride, int64_t step, int64_t count, E* to) const {
    if constexpr (kIsPaired<E>) {
      const U32Vector lower = load_pairs(from, count);
      const bool has_second = 2 * step + 1 < t_.depth;
      const U32Vector upper = load_pairs(from + stride, has_second ? count : 0);
      store(to, zipped<0, kPairLanes>(lower, upper));
      store(to + kLanes<float>, zipped<kPairLanes / 2, kPairLanes + kPairLanes / 2>(lower, upper));
    } else {
      for (int64_t i = 0; i < kPanel<T>; i += kLanes<T>)
        store(to + i, load_steps(from + i, count - i));
    }
  }

  void multiply_tile(int64_t first, int64_t of_group, int64_t rows, int64_t panel,
                     const E* packed) const {
    if (rows > kTileRows) rows = kTileRows;
    const int64_t row = first + of_group;
    const int64_t column = panel * kPanel<T>;
    const E* right = static_cast<const E*>(t_.packed_right) + panel * panel_;
    const bool is_whole = rows == kTileRows && t_.right.count - column >= kPanel<T>;
    if (!is_readable_) {
      const E* left = packed + of_group / kPanel<T> * panel_ + of_group % kPanel<T>;
      const Strided<E> rows_of_panel{left, 1, kPanel<T>};
      if (is_whole) return whole_tile(rows_of_panel, right, row, column);
      return part_of_tile(rows_of_panel, right, row, rows, column);
    }
    const E* left = reinterpret_cast<const E*>(t_.left.data + row * t_.left.stride);
    const int64_t stride = t_.left.stride / kStepDepth<T>;
    if (is_whole) return whole_tile({left, stride, 1}, right, row, column);
    if (rows == kTileRows) return part_of_tile({left, stride, 1}, right, row, rows, column);
    // Beyond the last row is nobody's memory: each of the last ones fills a tile.
    for (int64_t i = 0; i < rows; ++i)
      part_of_tile({left + i * stride, 0, 1}, right, row + i, 1, column);
  }

  /// Meanwhile the rows of the next tile come into the second cache: in a training step nobody has
  /// touched them for long.
  [[gnu::always_inline]] void add_steps(Strided<E> left, const E* right,
                                        Vector<C> (&sums)[kTileRows][2]) const {
    constexpr int64_t steps_of_line = kLine / int64_t{sizeof(E)};
    for (int64_t k = 0; k < steps_; k += steps_of_line) {
      if (left.column_stride == 1) {
        const E* next = left.data + kTileRows * left.row_stride + k;
        for (int64_t i = 0; i < kTileRows; ++i)
          __builtin_prefetch(next + i * left.row_stride, 0, 2);
      }
      const int64_t count = steps_ - k < steps_of_line ? steps_ - k : steps_of_line;
      const Strided<E> rest{left.data + k * left.column_stride, left.row_stride,
                            left.column_stride};
      add_tile(count, rest, right + k * kPanel<T>, kPanel<T>, sums);
    }
  }

  /// The rows of the result come into the first cache likewise.
  [[gnu::always_inline]] void whole_tile(Strided<E> left, const E* right, int64_t row,
                                         int64_t column) const {
    const int64_t start = row * t_.right.count + column;
    Vector<C> sums[kTileRows][2];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTileRows; ++i) {
      sums[i][0] = sums[i][1] = Vector<C>{};
      const int64_t first = start + i * t_.right.count;
      const char* out = t_.sum ? reinterpret_cast<const char*>(t_.sum + first)
                               : reinterpret_cast<const char*>(t_.out + first);
      for (int64_t k = 0; k < kPanel<T> * (t_.sum ? int64_t{sizeof(C)} : int64_t{sizeof(T)});
           k += kLine)
        __builtin_prefetch(out + k, 1);
    }
    add_steps(left, right, sums);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTileRows; ++i) {
      const int64_t first = start + i * t_.right.count;
      if (t_.sum) {
        store(t_.sum + first, load(t_.sum + first) + sums[i][0]);
        store(t_.sum + first + kLanes<C>, load(t_.sum + first + kLanes<C>) + sums[i][1]);
      } else {
        store_row(t_.out + first, sums[i][0], sums[i][1]);
      }
    }
  }

  [[gnu::noinline]] void part_of_tile(Strided<E> left, const E* right, int64_t row, int64_t rows,
                                      int64_t column) const {
    C sums[kTileRows][kPanel<T>];
    register_tile(steps_, left, right, kPanel<T>, sums[0], kPanel<T>, /*accumulate=*/false);
    const int64_t columns =
        t_.right.count - column < kPanel<T> ? t_.right.count - column : kPanel<T>;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t start = (row + i) * t_.right.count + column;
      if (t_.sum) {
        C* sum = t_.sum + start;
        sweep<C>(columns, [&](int64_t k, auto lanes) {
          store(sum + k, load(sum + k, lanes) + load(sums[i] + k, lanes), lanes);
        });
      } else {
        T values[kPanel<T>];
        store_row(values, load(sums[i]), load(sums[i] + kLanes<C>));
        __builtin_memcpy(t_.out + start, values, static_cast<uint64_t>(columns) * sizeof(T));
      }
    }
  }

  /// As many rows as a vector has lanes, of which the transpose is stored.
  void multiply_square(int64_t row, int64_t rows, int64_t panel) const {
    constexpr int64_t lanes = kLanes<C>;
    if (rows > lanes) rows = lanes;
    const int64_t column = panel * kPanel<T>, rest = t_.right.count - column;
    const int64_t columns = rest < kPanel<T> ? rest : kPanel<T>;
    const int64_t stride = t_.left.stride / kStepDepth<T>, out_stride = t_.left.count;
    T* const out = t_.out + column * out_stride + row;
    for (int64_t i = 0; i < columns; ++i) __builtin_prefetch(out + i * out_stride, 1);
    const E* left = reinterpret_cast<const E*>(t_.left.data) + row * stride;
    const E* right = static_cast<const E*>(t_.packed_right) + panel * panel_;
    C sums[lanes][kPanel<T>] = {};
    for (int64_t i = 0; i < rows;) {
      // As in multiply_tile.
      const bool is_whole = rows - i >= kTileRows;
      Vector<C> of_tile[kTileRows][2] = {};
      add_steps({left + i * stride, is_whole ? stride : 0, 1}, right, of_tile);
      __builtin_memcpy(sums[i], of_tile, is_whole ? sizeof of_tile : sizeof of_tile[0]);
      i += is_whole ? kTileRows : 1;
    }
    for (int64_t first = 0; first < columns; first += lanes) {
      Vector<C> square[lanes];
      for (int64_t i = 0; i < lanes; ++i) square[i] = load(sums[i] + first);
      transpose<lanes / 2>(square);
      for (int64_t i = 0; i < lanes && first + i < columns; ++i) {
        T* const to = out + (first + i) * out_stride;
        if (rows == lanes)
          store(to, square[i]);
        else
          store(to, square[i], Part{rows});
      }
    }
  }

  static void store_row(T* to, Vector<C> first, Vector<C> second) {
    if constexpr (kIsPaired<E>) {
      const U32Vector both = narrowed(first, second);
      __builtin_memcpy(to, &both, sizeof both);
    } else {
      store(to, first);
      store(to + kLanes<T>, second);
    }
  }

  bool is_transposed_;
  GemmTask<T> t_;
  bool is_readable_;
  int64_t steps_;   // of the depth
  int64_t panel_;   // elements of a packed panel
  int64_t panels_;  // of the right operand
  int64_t group_;   // rows of the left operand, panels of them
  int64_t groups_;
  int64_t splits_;  // units of a group
};

template <class T>
GemmSizes gemm_sizes(const GemmTask<T>& task) {
  return Multiplication<T>(task).sizes();
}
template <class T>
void gemm_pack(const GemmTask<T>& task, int64_t begin, int64_t end) {
  Multiplication<T>(task).pack_right(begin, end);
}
template <class T>
void gemm(const GemmTask<T>& task, void* packed, int64_t begin, int64_t end) {
  Multiplication<T>(task).multiply(begin, end, packed);
}

}  // namespace

void enter_gemm(RangeKernels& table) {
  for_each_type(table, []<class T>(RangeKernelsOf<T>& kernels) {
    kernels.gemm_sizes = &gemm_sizes<T>;
    kernels.gemm_pack = &gemm_pack<T>;
    kernels.gemm = &gemm<T>;
  });
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA

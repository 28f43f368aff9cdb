// The kernels for GPUs and their table: compiled by hipcc or nvcc for GPUs, with
// TINYLLAMA_GPU_EMULATED by any compiler for tests.
#include "model/kernels/gpu/elements.hpp"

namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE {

// RMSNorm, with the residual addition before it, and its gradients: a block a row, then the
// weight's gradient by columns, in parts that a last kernel adds up.

/// out = weight * round_T(x / rms(x)); each thread reads what it has read or written itself.
template <int N, class T>
__device__ inline void scale_row(const T* x, ComputeType<T> sum_of_squares, const T* weight, T* out,
                                 ComputeType<T>* inverse_rms, int64_t width, double eps) {
  using Compute = ComputeType<T>;
  const Compute mean = sum_of_squares / static_cast<Compute>(width);
  const Compute inverse = 1 / root_of(mean + static_cast<Compute>(eps));
  if (threadIdx.x == 0) *inverse_rms = inverse;
  sweep_by_block<N>(width, [&](int64_t i, auto lanes) {
    auto values = load(x + i, lanes);
    const auto weights = load(weight + i, lanes);
    for (int k = 0; k < lanes.count; ++k)
      values[k] = weights[k] * rounded_as<T>(values[k] * inverse);
    store(out + i, values);
  });
}

template <int N, class T>
__global__ void __launch_bounds__(kLargestBlock) rms_norm_row(RmsNormRows<T> a) {
  const int64_t start = int64_t{blockIdx.x} * a.width;
  ComputeType<T> squares = 0;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    const auto x = load(a.x + start + i, lanes);
    for (int k = 0; k < lanes.count; ++k) squares += x[k] * x[k];
  });
  squares = block_sum(squares);
  scale_row<N>(a.x + start, squares, a.weight, a.out + start, a.inverse_rms + blockIdx.x, a.width,
               a.eps);
}

template <int N, class T, class Branch>
__global__ void __launch_bounds__(kLargestBlock) add_rms_norm_row(AddRmsNormRows<T, Branch> a) {
  const int64_t start = int64_t{blockIdx.x} * a.width;
  ComputeType<T> squares = 0;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    auto sum = load(a.residual + start + i, lanes);
    const auto branch = load(a.branch + start + i, lanes);
    for (int k = 0; k < lanes.count; ++k) {
      sum[k] = rounded_as<T>(sum[k] + branch[k]);
      squares += sum[k] * sum[k];
    }
    store(a.sum + start + i, sum);
  });
  squares = block_sum(squares);
  scale_row<N>(a.sum + start, squares, a.weight, a.out + start, a.inverse_rms + blockIdx.x, a.width,
               a.eps);
}

template <int N, class T, class Branch>
__global__ void __launch_bounds__(kLargestBlock)
    rms_norm_input_gradient(RmsNormGradientRows<T, Branch> a) {
  using Compute = ComputeType<T>;
  const int64_t start = int64_t{blockIdx.x} * a.width;
  Compute dot = 0;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    const auto g = load(a.gradient + start + i, lanes);
    const auto w = load(a.weight + i, lanes);
    const auto x = load(a.x + start + i, lanes);
    for (int k = 0; k < lanes.count; ++k) dot += g[k] * w[k] * x[k];
  });
  const Compute inverse = a.inverse_rms[blockIdx.x];
  const Compute mean = block_sum(dot) / static_cast<Compute>(a.width);
  const Compute slope = inverse * inverse * inverse * mean;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    const int64_t place = start + i;
    auto result = load(a.gradient + place, lanes);
    const auto w = load(a.weight + i, lanes);
    const auto x = load(a.x + place, lanes);
    for (int k = 0; k < lanes.count; ++k) result[k] = result[k] * w[k] * inverse - x[k] * slope;
    if (a.sum_gradient) {
      const auto more = load(a.sum_gradient + place, lanes);
      for (int k = 0; k < lanes.count; ++k) result[k] += more[k];
    }
    store(a.x_gradient + place, result);
    if (a.branch_gradient) store(a.branch_gradient + place, result);
  });
}

/// A block adds up columns: this many side by side, each by as many threads as rows are taken in
/// turn.
inline constexpr int kColumns = kLargestBlock >= 256 ? 32 : 4;
inline constexpr int kRowLanes = kLargestBlock >= 256 ? 8 : 2;

/// This thread's column of [0, width), which may lie behind the last.
__device__ inline int64_t own_column() {
  return int64_t{blockIdx.x} * kColumns + threadIdx.x % kColumns;
}

/// For the first kColumns threads: the sum of value(row) over rows [begin, end) of their column.
template <class Compute, class Value>
__device__ inline Compute column_sum(int64_t begin, int64_t end, int64_t width, Value value) {
  __shared__ Compute shared[kRowLanes][kColumns];
  const auto column = threadIdx.x % kColumns, lane = threadIdx.x / kColumns;
  Compute sum = 0;
  if (own_column() < width) {
    for (int64_t row = begin + lane; row < end; row += kRowLanes) sum += value(row);
  }
  shared[lane][column] = sum;
  __syncthreads();
  if (lane > 0) return 0;
  for (int other = 1; other < kRowLanes; ++other) sum += shared[other][column];
  return sum;
}

/// Part blockIdx.y of the rows.
template <class T, class Branch>
__global__ void __launch_bounds__(kLargestBlock)
    rms_norm_weight_gradient(RmsNormGradientRows<T, Branch> a, int64_t rows) {
  const int64_t column = own_column(), part = blockIdx.y, parts = gridDim.y;
  const auto sum = column_sum<ComputeType<T>>(
      rows * part / parts, rows * (part + 1) / parts, a.width, [&](int64_t row) {
        const int64_t i = row * a.width + column;
        return widened(a.gradient[i]) * rounded_as<T>(widened(a.x[i]) * a.inverse_rms[row]);
      });
  if (threadIdx.x < kColumns && column < a.width) a.weight_gradient[part * a.width + column] = sum;
}

template <class T>
__global__ void __launch_bounds__(kLargestBlock) sum_of_rows(SumOfRows<T> a) {
  const int64_t column = own_column();
  const auto sum = column_sum<ComputeType<T>>(
      0, a.rows, a.width, [&](int64_t row) { return a.parts[row * a.width + column]; });
  if (threadIdx.x < kColumns && column < a.width) a.out[column] = narrowed<T>(sum);
}

// On the host from here on.

template <class T>
void rms_norm(const RmsNormRows<T>& a, int64_t rows, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const bool in_packs = are_multiples<pack>(a.width) && are_aligned<pack>(a.x, a.weight, a.out);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.width / N), &rms_norm_row<N, T>, a);
  });
}

template <class T, class Branch>
void add_rms_norm(const AddRmsNormRows<T, Branch>& a, int64_t rows, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const bool in_packs = are_multiples<pack>(a.width) &&
                        are_aligned<pack>(a.residual, a.branch, a.weight, a.sum, a.out);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.width / N), &add_rms_norm_row<N, T, Branch>, a);
  });
}

template <class T, class Branch>
void rms_norm_gradient(const RmsNormGradientRows<T, Branch>& a, T* weight_gradient, int64_t rows,
                       GpuStream stream) {
  constexpr int pack = kPack<T>;
  // A null pointer is aligned.
  const bool in_packs =
      are_multiples<pack>(a.width) &&
      are_aligned<pack>(a.gradient, a.sum_gradient, a.x, a.weight, a.x_gradient, a.branch_gradient);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.width / N), &rms_norm_input_gradient<N, T, Branch>, a);
  });
  const int64_t parts = gpu_norm_parts(rows), blocks = divided_up(a.width, kColumns);
  constexpr int threads = kColumns * kRowLanes;
  launch(stream, {blocks, parts}, threads, &rms_norm_weight_gradient<T, Branch>, a, rows);
  launch(stream, {blocks}, threads, &sum_of_rows<T>,
         SumOfRows<T>{a.weight_gradient, weight_gradient, parts, a.width});
}

// Rotary embedding: a block a token, each thread the same places of both halves of a head.

template <int N, class T>
__global__ void __launch_bounds__(kLargestBlock) rotary_token(RotaryTokens<T> a) {
  using Compute = ComputeType<T>;
  const int64_t token = blockIdx.x, position = token % a.positions;
  const T* x = a.x + token / a.positions * a.batch_stride + position * a.position_stride;
  T* out = a.out + token * a.heads * a.head_dim;
  const T* cos = a.cos + position * a.head_dim;
  const T* sin = a.sin + position * a.head_dim;
  const Compute direction = a.backwards ? -1 : 1;
  // 32-bit division, which a GPU does several times as fast; heads of one token are few.
  const auto half = static_cast<int32_t>(a.head_dim / 2);
  const auto all = static_cast<int32_t>(a.heads) * half;
  for (auto place = static_cast<int32_t>(threadIdx.x) * N; place < all;
       place += static_cast<int32_t>(blockDim.x) * N) {
    const int32_t head = place / half, i = place % half;
    const T* from = x + head * a.head_stride + i;
    const auto c = load(cos + i, Lanes<N>{}), s = load(sin + i, Lanes<N>{});
    const auto first = load(from, Lanes<N>{}), second = load(from + half, Lanes<N>{});
    auto left = first, right = second;
    for (int k = 0; k < N; ++k) {
      left[k] = first[k] * c[k] - second[k] * (s[k] * direction);
      right[k] = second[k] * c[k] + first[k] * (s[k] * direction);
    }
    T* to = out + head * a.head_dim + i;
    store(to, left);
    store(to + half, right);
  }
}

template <class T>
void rotary(const RotaryTokens<T>& a, int64_t tokens, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const int64_t half = a.head_dim / 2;
  const bool in_packs =
      are_multiples<pack>(half, a.batch_stride, a.position_stride, a.head_stride) &&
      are_aligned<pack>(a.x, a.cos, a.sin, a.out);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {half > 0 ? tokens : 0}, block_size(a.heads * half / N), &rotary_token<N, T>, a);
  });
}

// SwiGLU's gate and its gradients: a block a row.

template <class T>
__device__ inline ComputeType<T> sigmoid(ComputeType<T> x) {
  return reciprocal_for<T>(1 + exp_for<T>(-x));
}

template <int N, class T>
__global__ void __launch_bounds__(kLargestBlock) swiglu_row(SwigluRows<T> a) {
  const int64_t row = blockIdx.x;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    auto values = load(a.gate + row * a.gate_stride + i, lanes);
    const auto up = load(a.up + row * a.up_stride + i, lanes);
    for (int k = 0; k < lanes.count; ++k) values[k] = values[k] * sigmoid<T>(values[k]) * up[k];
    store(a.out + row * a.width + i, values);
  });
}

template <int N, class T>
__global__ void __launch_bounds__(kLargestBlock) swiglu_gradient_row(SwigluGradientRows<T> a) {
  const int64_t row = blockIdx.x;
  sweep_by_block<N>(a.width, [&](int64_t i, auto lanes) {
    const auto g = load(a.gradient + row * a.width + i, lanes);
    const auto gate = load(a.gate + row * a.gate_stride + i, lanes);
    const auto up = load(a.up + row * a.up_stride + i, lanes);
    auto of_gate = gate, of_up = gate;
    for (int k = 0; k < lanes.count; ++k) {
      const auto s = sigmoid<T>(gate[k]);
      of_gate[k] = g[k] * up[k] * s * (1 + gate[k] * (1 - s));
      of_up[k] = g[k] * gate[k] * s;
    }
    store(a.gate_gradient + row * a.gradient_stride + i, of_gate);
    store(a.up_gradient + row * a.gradient_stride + i, of_up);
  });
}

// On the host from here on.

template <class T>
void swiglu(const SwigluRows<T>& a, int64_t rows, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const bool in_packs = are_multiples<pack>(a.width, a.gate_stride, a.up_stride) &&
                        are_aligned<pack>(a.gate, a.up, a.out);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.width / N), &swiglu_row<N, T>, a);
  });
}

template <class T>
void swiglu_gradient(const SwigluGradientRows<T>& a, int64_t rows, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const bool in_packs =
      are_multiples<pack>(a.width, a.gate_stride, a.up_stride, a.gradient_stride) &&
      are_aligned<pack>(a.gradient, a.gate, a.up, a.gate_gradient, a.up_gradient);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.width / N), &swiglu_gradient_row<N, T>, a);
  });
}

// Cross-entropy of rows of logits and its gradient, which may take the logits' place: a block a
// row. Exponentials are computed twice rather than kept: a row stays in a GPU's caches.

/// The largest logit; NaNs are passed over, the sum of exponentials will meet them.
template <int N, class T>
__device__ inline ComputeType<T> largest_logit(const T* logits, int64_t classes) {
  using Compute = ComputeType<T>;
  Compute max = -static_cast<Compute>(INFINITY);
  sweep_by_block<N>(classes, [&](int64_t i, auto lanes) {
    const auto values = load(logits + i, lanes);
    for (int k = 0; k < lanes.count; ++k) max = larger(values[k], max);
  });
  return block_reduced(max, [](Compute a, Compute b) { return larger(a, b); });
}

template <int N, class T>
__device__ inline ComputeType<T> sum_of_exponentials(const T* logits, int64_t classes,
                                                     ComputeType<T> max) {
  ComputeType<T> sum = 0;
  sweep_by_block<N>(classes, [&](int64_t i, auto lanes) {
    const auto values = load(logits + i, lanes);
    for (int k = 0; k < lanes.count; ++k) sum += exp_for<T>(values[k] - max);
  });
  return block_sum(sum);
}

template <int N, class T>
__device__ inline void ignore_row(const CrossEntropyRows<T>& a, int64_t row) {
  if (threadIdx.x == 0) a.losses[row] = 0;
  if (!a.gradient) return;
  sweep_by_block<N>(a.classes, [&](int64_t i, auto lanes) {
    store(a.gradient + row * a.classes + i, Values<ComputeType<T>, lanes.count>{});
  });
}

template <int N, class T>
__global__ void __launch_bounds__(kLargestBlock) cross_entropy_row(CrossEntropyRows<T> a) {
  using Compute = ComputeType<T>;
  const int64_t row = blockIdx.x;
  const int64_t target = a.targets[row];
  // The whole block goes one way, so that no thread misses a barrier.
  if (target == a.ignored_target) return ignore_row<N>(a, row);
  const T* logits = a.logits + row * a.classes;
  const bool in_range = target >= 0 && target < a.classes;
  const Compute of_target = in_range ? widened(logits[target]) : static_cast<Compute>(NAN);
  const Compute max = largest_logit<N>(logits, a.classes);
  // Its barriers come after every thread's read of the target's logit, before anybody's write.
  const Compute sum = sum_of_exponentials<N>(logits, a.classes, max);
  if (threadIdx.x == 0) {
    a.losses[row] =
        static_cast<Compute>(log(static_cast<double>(sum)) -
                             (static_cast<double>(of_target) - static_cast<double>(max)));
  }
  if (!a.gradient) return;
  const Compute scale = in_range ? 1 / sum : static_cast<Compute>(NAN);
  T* gradient = a.gradient + row * a.classes;
  sweep_by_block<N>(a.classes, [&](int64_t i, auto lanes) {
    auto values = load(logits + i, lanes);
    for (int k = 0; k < lanes.count; ++k) values[k] = exp_for<T>(values[k] - max) * scale;
    store(gradient + i, values);
  });
  // One barrier for all elements rather than a comparison for each.
  __syncthreads();
  // From what is not rounded, so that a probability near 1 keeps its distance from 1.
  if (in_range && threadIdx.x == 0)
    gradient[target] = narrowed<T>((exp_for<T>(of_target - max) - sum) * scale);
}

template <class T>
void cross_entropy(const CrossEntropyRows<T>& a, int64_t rows, GpuStream stream) {
  constexpr int pack = kPack<T>;
  const bool in_packs = are_multiples<pack>(a.classes) && are_aligned<pack>(a.logits, a.gradient);
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    launch(stream, {rows}, block_size(a.classes / N), &cross_entropy_row<N, T>, a);
  });
}

// AdamW over many tensors a launch: a row of blocks each.

/// As many as fit into the 4 KiB that a launch may carry.
inline constexpr int kTensorsOfALaunch = 36;

template <class T>
struct AdamWTensors {
  AdamWElements<T> tensor[kTensorsOfALaunch];
  int64_t elements[kTensorsOfALaunch];
};
static_assert(sizeof(AdamWTensors<float>) <= 4000);

template <int N, class T>
__global__ void __launch_bounds__(kLargestBlock) adamw_tensors(AdamWTensors<T> all) {
  using Compute = ComputeType<T>;
  const AdamWElements<T> a = all.tensor[blockIdx.y];
  const Compute second_scale =
      a.corrections ? static_cast<Compute>(a.corrections[0]) : a.second_scale;
  const Compute step_size = a.corrections ? static_cast<Compute>(a.corrections[1]) : a.step_size;
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  sweep<N>(all.elements[blockIdx.y], thread, threads, [&](int64_t i, auto lanes) {
    auto p = load(a.parameter + i, lanes);
    const auto g = load(a.gradient + i, lanes);
    auto m = load(a.first_moment + i, lanes);
    auto v = load(a.second_moment + i, lanes);
    for (int k = 0; k < lanes.count; ++k) {
      m[k] += a.first_weight * (g[k] - m[k]);
      v[k] = v[k] * a.second_decay + g[k] * g[k] * a.second_weight;
      const Compute change = m[k] / (root_of(v[k]) * second_scale + a.eps);
      p[k] = p[k] * a.decay - step_size * change;
    }
    store(a.first_moment + i, m);
    store(a.second_moment + i, v);
    store(a.parameter + i, p);
  });
}

template <class T>
void adamw_of_a_launch(const AdamWElements<T>* tensors, const int64_t* elements, int64_t count,
                       GpuStream stream) {
  AdamWTensors<T> all{};
  constexpr int pack = kPack<T>;
  bool in_packs = true;
  int64_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const AdamWElements<T>& a = tensors[i];
    all.tensor[i] = a;
    all.elements[i] = elements[i];
    most = most < elements[i] ? elements[i] : most;
    in_packs =
        in_packs && are_aligned<pack>(a.parameter, a.gradient, a.first_moment, a.second_moment);
  }
  with_lanes<T>(in_packs, [&]<int N>(Lanes<N>) {
    const int threads = block_size(most / N);
    const int64_t blocks = divided_up(most, int64_t{threads} * N);
    launch(stream, {blocks < kMostBlocks ? blocks : kMostBlocks, count}, threads,
           &adamw_tensors<N, T>, all);
  });
}

template <class T>
void adamw(const AdamWElements<T>* tensors, const int64_t* elements, int64_t count,
           GpuStream stream) {
  for (int64_t i = 0; i < count; i += kTensorsOfALaunch) {
    const int64_t rest = count - i;
    adamw_of_a_launch(tensors + i, elements + i,
                      rest < kTensorsOfALaunch ? rest : kTensorsOfALaunch, stream);
  }
}

namespace {

template <class T>
void enter(GpuKernelsOf<T>& kernels) {
  kernels.rms_norm = &rms_norm<T>;
  kernels.rotary = &rotary<T>;
  kernels.swiglu = &swiglu<T>;
  kernels.swiglu_gradient = &swiglu_gradient<T>;
  kernels.cross_entropy = &cross_entropy<T>;
  kernels.adamw = &adamw<T>;
}

template <class T, class Branch>
void enter(GpuNormKernels<T, Branch>& kernels) {
  kernels.add_rms_norm = &add_rms_norm<T, Branch>;
  kernels.rms_norm_gradient = &rms_norm_gradient<T, Branch>;
}

GpuKernels make_table() {
  GpuKernels kernels{};
  std::apply([](auto&... entries) { (enter(entries), ...); }, kernels);
  return kernels;
}

/// Asked about instead of a kernel at work: clang 15 leaves out the definition of a kernel template
/// whose address a function that is no template takes first.
__global__ void nothing() {}

}  // namespace

const GpuKernels& table() {
  static const GpuKernels kernels = make_table();
  return kernels;
}

bool runs_on_current_device() {
  return runs_here(&nothing);
}

}  // namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE

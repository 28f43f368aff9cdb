// Range kernels: the loops of every CPU kernel, over a range of rows (or elements) of raw memory,
// by the calling thread alone. One table of them for each instruction set; range_kernels() in
// launch.hpp is the best that this processor has.
//
// To add one:
//   1. Here: a struct with its arguments, and a pointer in RangeKernelsOf (one for each element
//      type), or in RangeKernels where it serves only some combination of types.
//   2. cpu/<name>.cpp: the loop, as a template over the element type in namespace
//      tinyllama::kernels::TINYLLAMA_ISA, and `void enter_<name>(RangeKernels&)`, which enters it
//      into the table. Vectors, loads, stores and exp are in vector.hpp. Include nothing of
//      libtorch or of the C++ library there but <stdint.h>; __builtin_ functions are safe. Files
//      that are compiled for several instruction sets must share no inline function with others, or
//      the linker could hand a function compiled for AVX-512 to everybody.
//   3. cpu/table.hpp and cpu/table.cpp: its declaration and its call.
//   4. ../CMakeLists.txt: the file in range_kernel_sources.
#pragma once

#include <stdint.h>

namespace tinyllama::kernels {

/// The upper half of a float32.
struct Bfloat16 {
  uint16_t bits;
};
/// IEEE 754 binary16.
struct Float16 {
  uint16_t bits;
};

template <class T>
struct ComputeTypeOf {
  using Type = float;
};
template <>
struct ComputeTypeOf<double> {
  using Type = double;
};
/// The type in which a range kernel computes on elements of type T, and stores one value per row.
template <class T>
using ComputeType = typename ComputeTypeOf<T>::Type;

/// Row r: out = weight * round_T(x * inverse_rms), inverse_rms = 1 / sqrt(mean(x^2) + eps).
template <class T>
struct RmsNormRows {
  const T* x;                   // [rows, width]
  const T* weight;              // [width]
  T* out;                       // [rows, width]
  ComputeType<T>* inverse_rms;  // [rows]
  int64_t width;
  double eps;
};

/// Row r: sum = round_T(residual + branch), then as RmsNormRows with x = sum.
template <class T, class Branch>
struct AddRmsNormRows {
  const T* residual;            // [rows, width]
  const Branch* branch;         // [rows, width]
  const T* weight;              // [width]
  T* sum;                       // [rows, width]
  T* out;                       // [rows, width]
  ComputeType<T>* inverse_rms;  // [rows]
  int64_t width;
  double eps;
};

/// Row r: x_gradient = inverse_rms * (g w - x inverse_rms^2 mean(g w x)) + sum_gradient, and
/// weight_gradient += g * round_T(x * inverse_rms).
template <class T, class Branch>
struct RmsNormGradientRows {
  const T* gradient;                  // g [rows, width]
  const T* sum_gradient;              // [rows, width], or null: none to add
  const T* x;                         // [rows, width]
  const T* weight;                    // [width]
  const ComputeType<T>* inverse_rms;  // [rows]
  T* x_gradient;                      // [rows, width]
  Branch* branch_gradient;            // [rows, width]: x_gradient in another type; or null
  ComputeType<T>* weight_gradient;    // [width], added to; for SumOfRows alone
  int64_t width;
};

/// Column i: out = sum over rows of parts. Ends what RmsNormGradientRows began: where T is
/// bfloat16, a row's weight_gradient is in an order of its own (pairs.hpp), which begin = 0 and end
/// = width undo.
template <class T>
struct SumOfRows {
  const ComputeType<T>* parts;  // [rows, width]
  T* out;                       // [width]
  int64_t rows, width;
};

/// Token t = batch * positions + position, each of its heads: with h = head_dim / 2, i < h,
/// out[i] = x[i] cos[i] - x[i + h] sin[i] and out[i + h] = x[i + h] cos[i] + x[i] sin[i].
template <class T>
struct RotaryTokens {
  const T* x;  // [batch, positions, heads, head_dim], by these strides:
  int64_t batch_stride, position_stride, head_stride;
  const T* cos;  // [positions, head_dim]; the first half of each row is read
  const T* sin;
  T* out;  // contiguous
  int64_t positions, heads, head_dim;
  bool backwards;  // turns by the negative angles
};

/// Row r: out = gate * sigmoid(gate) * up.
template <class T>
struct SwigluRows {
  const T* gate;  // [rows, width], rows this far apart:
  int64_t gate_stride;
  const T* up;
  int64_t up_stride;
  T* out;  // [rows, width]
  int64_t width;
};

/// Row r: with s = sigmoid(gate), gate_gradient = g up s (1 + gate (1 - s)), up_gradient = g gate
/// s.
template <class T>
struct SwigluGradientRows {
  const T* gradient;  // g [rows, width]
  const T* gate;
  int64_t gate_stride;
  const T* up;
  int64_t up_stride;
  T* gate_gradient;
  T* up_gradient;
  int64_t gradient_stride;  // of both gradients
  int64_t width;
};

/// Row r: loss = log(sum(exp(logits))) - logits[target]; both 0 where target is `ignored_target`.
template <class T>
struct CrossEntropyRows {
  const T* logits;         // [rows, classes]
  const int64_t* targets;  // [rows], each in [0, classes) or ignored_target
  int64_t ignored_target;
  T* gradient;  // [rows, classes]: softmax(logits) - onehot(target); may be logits itself, or null
  ComputeType<T>* losses;   // [rows]
  ComputeType<T>* scratch;  // [classes], of the calling thread alone; needed with gradient
  int64_t classes;
};

/// Element i: p *= decay; m += first_weight (g - m); v = second_decay v + second_weight g^2;
/// p -= step_size * m / (sqrt(v) * second_scale + eps).
template <class T>
struct AdamWElements {
  T* parameter;
  const T* gradient;
  T* first_moment;
  T* second_moment;
  ComputeType<T> decay, first_weight, second_decay, second_weight, second_scale, step_size, eps;
  /// Where not null: second_scale and step_size, in memory of the device and read when the kernel
  /// runs, in place of the two above.
  const double* corrections = nullptr;
};

/// A tensor [batch, positions, heads, head_dim], contiguous in the last dimension.
template <class T>
struct HeadsView {
  T* data;
  int64_t batch_stride, position_stride, head_stride;

  // Never a function of its own, which files of all instruction sets would share.
  [[gnu::always_inline]] T* at(int64_t batch, int64_t position, int64_t head) const {
    return data + batch * batch_stride + position * position_stride + head * head_stride;
  }
};

/// Queries of one unit of the forward kernel: a unit is (batch, KV head, part of the positions), in
/// that order, and loads its keys and values once.
inline constexpr int64_t kAttentionQueryPart = 256;
inline constexpr int64_t kAttentionQueryTile = 32;
[[gnu::always_inline]] inline constexpr int64_t attention_query_parts(int64_t seq) {
  return (seq + kAttentionQueryPart - 1) / kAttentionQueryPart;
}

/// out = softmax(scale q k^T, causal) v; head h reads KV head h / (heads / kv_heads).
template <class T>
struct AttentionRows {
  HeadsView<const T> q, k, v;
  T* out;                       // [batch, seq, heads, head_dim], contiguous
  ComputeType<T>* log_sum_exp;  // [batch, heads, seq]
  int64_t seq, heads, kv_heads, head_dim;
  int64_t window;  // positions that a query sees, its own and those before it
  double scale;
};

/// Its gradients; a unit is (batch, KV head).
template <class T>
struct AttentionGradientRows {
  HeadsView<const T> q, k, v;
  const T* out;           // as in AttentionRows
  const T* out_gradient;  // [batch, seq, heads, head_dim], contiguous
  const ComputeType<T>* log_sum_exp;
  HeadsView<T> q_gradient, k_gradient, v_gradient;
  int64_t seq, heads, kv_heads, head_dim;
  int64_t window;
  double scale;
};

/// A matrix [count, depth] that a GEMM multiplies: element (i, k) at data[i * stride + k] or, where
/// rows of memory are not of the depth, at data[k * stride + i].
template <class T>
struct GemmOperand {
  const T* data;
  int64_t stride;
  bool has_depth_in_rows;
  int64_t count;
};

/// out [left.count, right.count], contiguous, = left right^T, summed in ComputeType and rounded
/// once; where `sum` is not null it is added to instead.
template <class T>
struct GemmTask {
  GemmOperand<T> left, right;
  int64_t depth;
  T* out;
  ComputeType<T>* sum;
  int64_t threads;
  void* packed_right;  // scratch
};

struct GemmSizes {
  int64_t right_bytes;  // of packed_right
  int64_t left_bytes;   // of a thread's scratch
  int64_t pack_units, units;
};

/// Every function works on [begin, end).
template <class T>
struct RangeKernelsOf {
  void (*rms_norm)(const RmsNormRows<T>&, int64_t begin, int64_t end);
  void (*add_rms_norm)(const AddRmsNormRows<T, T>&, int64_t begin, int64_t end);
  void (*rms_norm_gradient)(const RmsNormGradientRows<T, T>&, int64_t begin, int64_t end);
  void (*sum_of_rows)(const SumOfRows<T>&, int64_t begin, int64_t end);
  void (*rotary)(const RotaryTokens<T>&, int64_t begin, int64_t end);
  void (*swiglu)(const SwigluRows<T>&, int64_t begin, int64_t end);
  void (*swiglu_gradient)(const SwigluGradientRows<T>&, int64_t begin, int64_t end);
  void (*cross_entropy)(const CrossEntropyRows<T>&, int64_t begin, int64_t end);
  void (*adamw)(const AdamWElements<T>&, int64_t begin, int64_t end);
  /// `scratch`: of the calling thread alone, as many elements as attention_scratch says.
  void (*attention)(const AttentionRows<T>&, ComputeType<T>* scratch, int64_t begin, int64_t end);
  int64_t (*attention_scratch)(const AttentionRows<T>&);
  void (*attention_gradient)(const AttentionGradientRows<T>&, ComputeType<T>* scratch,
                             int64_t begin, int64_t end);
  int64_t (*attention_gradient_scratch)(const AttentionGradientRows<T>&);
  /// Packing is done before multiplication begins; `packed` is of the calling thread alone.
  GemmSizes (*gemm_sizes)(const GemmTask<T>&);
  void (*gemm_pack)(const GemmTask<T>&, int64_t begin, int64_t end);
  void (*gemm)(const GemmTask<T>&, void* packed, int64_t begin, int64_t end);
};

/// A float32 residual with a branch that autocast made narrow.
template <class Branch>
struct MixedNormKernels {
  void (*add_rms_norm)(const AddRmsNormRows<float, Branch>&, int64_t begin, int64_t end);
  void (*rms_norm_gradient)(const RmsNormGradientRows<float, Branch>&, int64_t begin, int64_t end);
};

struct RangeKernels {
  const char* instruction_set;
  RangeKernelsOf<float> f32;
  RangeKernelsOf<double> f64;
  RangeKernelsOf<Bfloat16> bf16;
  RangeKernelsOf<Float16> f16;
  MixedNormKernels<Bfloat16> f32_with_bf16;
  MixedNormKernels<Float16> f32_with_f16;
  /// exp and exp2 of each of `count` floats, as the kernels above compute them.
  void (*exp)(const float* x, float* out, int64_t count);
  void (*exp2)(const float* x, float* out, int64_t count);
  /// As exp2 where results are rounded to bfloat16 or float16.
  void (*exp2_narrow)(const float* x, float* out, int64_t count);
};

}  // namespace tinyllama::kernels

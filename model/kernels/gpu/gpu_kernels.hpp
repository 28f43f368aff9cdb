// The kernels of a GPU, as a table: one source (kernels.cpp) that hipcc,
// nvcc and, with emulation_testing.hpp in place of a GPU, any C++ compiler build. Arguments are
// those of the CPU's range kernels; pointers are to memory of the current device. Every kernel is
// enqueued on the stream that it is given and nothing waits for it. No result depends on the order
// in which threads run: nothing is added up by atomics. A launch that the runtime refuses throws
// std::runtime_error.
//
// To add one: its pointer here, its kernel and its line in kernels.cpp, and its line in
// emulated_test.cpp, which runs the tests of the function on tensors over it.
#pragma once

#include <tuple>

#include "model/kernels/cpu/range_kernels.hpp"

namespace tinyllama::kernels {

/// A hipStream_t or cudaStream_t.
using GpuStream = void*;

template <class T>
struct GpuKernelsOf {
  void (*rms_norm)(const RmsNormRows<T>&, int64_t rows, GpuStream);
  void (*rotary)(const RotaryTokens<T>&, int64_t tokens, GpuStream);
  void (*swiglu)(const SwigluRows<T>&, int64_t rows, GpuStream);
  void (*swiglu_gradient)(const SwigluGradientRows<T>&, int64_t rows, GpuStream);
  /// Needs no scratch. Targets cannot be looked at without waiting for the device: one outside
  /// [0, classes) makes loss and gradient of its row NaN.
  void (*cross_entropy)(const CrossEntropyRows<T>&, int64_t rows, GpuStream);
  /// `count` tensors of elements[i] elements each.
  void (*adamw)(const AdamWElements<T>* tensors, const int64_t* elements, int64_t count, GpuStream);
};

/// How many partial sums a gradient of RMSNorm's weight is made of.
inline constexpr int64_t gpu_norm_parts(int64_t rows) {
  constexpr int64_t rows_of_a_part = 32, most = 128;
  const int64_t parts = (rows + rows_of_a_part - 1) / rows_of_a_part;
  return parts < 1 ? 1 : (parts < most ? parts : most);
}

/// Branch is T, or bfloat16 or float16 beside a float32 residual.
template <class T, class Branch>
struct GpuNormKernels {
  void (*add_rms_norm)(const AddRmsNormRows<T, Branch>&, int64_t rows, GpuStream);
  /// Gradients of x (and branch) and, into `weight_gradient` [width], of the weight; the struct's
  /// own weight_gradient is scratch, [gpu_norm_parts(rows), width], which need not be zero.
  void (*rms_norm_gradient)(const RmsNormGradientRows<T, Branch>&, T* weight_gradient, int64_t rows,
                            GpuStream);
};

/// std::get<GpuKernelsOf<float>>(kernels).rms_norm(...)
using GpuKernels =
    std::tuple<GpuKernelsOf<float>, GpuKernelsOf<double>, GpuKernelsOf<Bfloat16>,
               GpuKernelsOf<Float16>, GpuNormKernels<float, float>, GpuNormKernels<double, double>,
               GpuNormKernels<Bfloat16, Bfloat16>, GpuNormKernels<Float16, Float16>,
               GpuNormKernels<float, Bfloat16>, GpuNormKernels<float, Float16>>;

// kernels.cpp, compiled by the compiler of the GPU that libtorch was built for.
namespace gpu_device {
const GpuKernels& table();
/// Whether the kernels were compiled for an architecture like the current device's.
bool runs_on_current_device();
}  // namespace gpu_device

// kernels.cpp, compiled for the host: for tests.
namespace gpu_emulated {
const GpuKernels& table();
bool runs_on_current_device();
}  // namespace gpu_emulated

}  // namespace tinyllama::kernels

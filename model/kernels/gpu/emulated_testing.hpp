// Helpers of the tests that run the GPU's kernels on the host and compare them with the CPU's.
#pragma once

#include <tuple>

#include "model/kernels/cpu_launch.hpp"
#include "model/kernels/gpu/gpu_kernels.hpp"
#include "model/kernels/kernel_testing.hpp"

namespace tinyllama::kernels::testing {

inline constexpr auto kF32 = c10::ScalarType::Float;

/// Widths that fill packs of elements and widths that do not, below and above a block's threads.
inline const std::vector<int64_t> kWidths = {1, 2, 7, 12, 64, 130};

template <class T>
const GpuKernelsOf<T>& gpu_kernels_of() {
  return std::get<GpuKernelsOf<T>>(gpu_emulated::table());
}
template <class T, class Branch>
const GpuNormKernels<T, Branch>& gpu_norms_of() {
  return std::get<GpuNormKernels<T, Branch>>(gpu_emulated::table());
}

/// body(kernels of the GPU, of the CPU, type) for each type.
template <class Body>
void for_each_type(Body body) {
  for (const auto type : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    with_range_kernels(
        type, [&]<class T>(const RangeKernelsOf<T>& cpu) { body(gpu_kernels_of<T>(), cpu, type); });
  }
}

inline at::Tensor in_f64(const at::Tensor& tensor) {
  return tensor.to(c10::ScalarType::Double);
}

/// Memory of the CPU, filled with what no kernel may leave there.
inline at::Tensor unwritten(at::IntArrayRef shape, c10::ScalarType type) {
  return at::full(shape, 777.0, at::TensorOptions().dtype(type));
}
inline at::Tensor unwritten_as(const at::Tensor& tensor) {
  return unwritten(tensor.sizes(), tensor.scalar_type());
}

}  // namespace tinyllama::kernels::testing

// From tensors to kernels: element types, checks, raw pointers, and the division of rows over
// threads. Internal to the kernels.
#pragma once

#include <ATen/Config.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/dtype.hpp"
#include "model/kernels/cpu/range_kernels.hpp"
#include "model/kernels/gpu/gpu_kernels.hpp"
#include "model/meta_device.hpp"

// at::parallel_for is a template of libtorch's headers and would silently run on one thread.
#if AT_PARALLEL_OPENMP && !defined(_OPENMP)
#error "compile with OpenMP: see CMakeLists.txt"
#endif

/// One operator for profilers and operator counters; `name` is a literal.
#define TINYLLAMA_RECORD_KERNEL(name) \
  RECORD_FUNCTION("tinyllama::" name, c10::ArrayRef<const c10::IValue>{})

namespace tinyllama::kernels {

// The functions for GPUs are in every build. In one for CPUs there are no kernels behind them, and
// no tensor is on a GPU.

/// Why no fused kernels of our own run on this GPU: none were built, or for other architectures;
/// empty where they run. Asks the GPU's runtime and so starts it: not to be called in a process
/// that computes on the CPU.
std::string why_no_gpu_kernels(c10::Device device);

/// Null in a build without them.
const GpuKernels* gpu_kernels();

/// The stream on which libtorch enqueues work for this device. Only where there are kernels for it.
GpuStream current_gpu_stream(c10::Device device);

/// Calls launch(kernels, stream) with the part of the table that has the type Entry, while the
/// tensor's device is the current one.
template <class Entry, class Launch>
void launch_on_gpu(const at::Tensor& tensor, const Launch& launch) {
  const c10::DeviceGuard guard(tensor.device());
  launch(std::get<Entry>(*gpu_kernels()), current_gpu_stream(tensor.device()));
}

/// The kernels of the best instruction set that this processor has and that ATEN_CPU_CAPABILITY
/// allows, which limits libtorch's own kernels, too.
const RangeKernels& range_kernels();
/// All that can run here, the best first.
const std::vector<RangeKernels>& available_range_kernels();

/// body(kernels) with the RangeKernelsOf<T> of a tensor's type.
template <class Body>
void with_range_kernels(c10::ScalarType type, Body body) {
  const RangeKernels& kernels = range_kernels();
  switch (type) {
    case c10::ScalarType::Float:
      return body(kernels.f32);
    case c10::ScalarType::Double:
      return body(kernels.f64);
    case c10::ScalarType::BFloat16:
      return body(kernels.bf16);
    case c10::ScalarType::Half:
      return body(kernels.f16);
    default:
      TORCH_CHECK_VALUE(false, "type ", c10::toString(type),
                        ": kernels take float32, float64, bfloat16 and float16");
  }
}

inline void check_on_cpu(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor.defined() && (tensor.device().is_cpu() || tensor.is_meta()), name,
                    " is ", tensor.defined() ? tensor.device().str() : "undefined",
                    ": kernels take tensors on the CPU");
}

inline void check_device(const at::Tensor& tensor, const char* name) {
  if (tensor.defined() && (tensor.is_meta() || (tensor.is_cuda() && gpu_kernels()))) return;
  check_on_cpu(tensor, name);
}

inline void check_same_device(const at::Tensor& tensor, const char* name,
                              const at::Tensor& reference, const char* reference_name) {
  TORCH_CHECK_VALUE(tensor.device() == reference.device(), name, " is on ", tensor.device(),
                    ": it must be on ", reference.device(), ", as ", reference_name, " is");
}

/// Checks that `tensor` has the type and the device of `reference`.
inline void check_type(const at::Tensor& tensor, const char* name, const at::Tensor& reference,
                       const char* reference_name) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == reference.scalar_type(), name, " is ",
                    c10::toString(tensor.scalar_type()), ": it must be ",
                    c10::toString(reference.scalar_type()), ", as ", reference_name, " is");
  check_same_device(tensor, name, reference, reference_name);
}

/// An uninitialised contiguous tensor. On a CPU it is made without calling an operator, which would
/// be counted.
inline at::Tensor uninitialized(at::IntArrayRef shape, c10::ScalarType type,
                                c10::Device device = c10::kCPU) {
  if (!device.is_cpu()) return at::empty(shape, at::TensorOptions().dtype(type).device(device));
  return at::detail::empty_cpu(shape, at::TensorOptions().dtype(type));
}
inline at::Tensor uninitialized_as(const at::Tensor& tensor) {
  return uninitialized(tensor.sizes(), tensor.scalar_type(), tensor.device());
}

template <class T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}
template <class T>
const T* const_data(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

/// Below this many elements a second thread costs more than it saves.
inline constexpr int64_t kElementsPerThread = 16384;

/// body(begin, end) over all of [0, rows), by as many threads as `row_elements` a row are worth.
template <class Body>
void for_rows(int64_t rows, int64_t row_elements, const Body& body) {
  const int64_t grain =
      std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, row_elements));
  at::parallel_for(0, rows, grain, body);
}

/// How many parts for_parts makes; depends on nothing but sizes and the number of threads, so that
/// sums over parts are the same in every run.
inline int64_t part_count(int64_t rows, int64_t row_elements) {
  const int64_t wanted = rows * row_elements / kElementsPerThread;
  const int64_t most = std::min<int64_t>(at::get_num_threads(), rows);
  return std::max<int64_t>(1, std::min(wanted, most));
}

/// body(part, begin, end) for each part of [0, rows), one thread a part.
template <class Body>
void for_parts(int64_t parts, int64_t rows, const Body& body) {
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part)
      body(part, rows * part / parts, rows * (part + 1) / parts);
  });
}

/// Runs one kernel over all rows, on the device of `x`: `gpu`, a member of the GPU's table, or
/// `cpu` on as many threads as rows of `row_elements` are worth.
template <class Entry, class Arguments, class Cpu>
void run_rows(const at::Tensor& x, int64_t rows, int64_t row_elements,
              void (*Entry::*gpu)(const Arguments&, int64_t, GpuStream), Cpu cpu,
              const Arguments& arguments) {
  if (x.is_cuda()) {
    return launch_on_gpu<Entry>(x, [&](const Entry& kernels, GpuStream stream) {
      (kernels.*gpu)(arguments, rows, stream);
    });
  }
  for_rows(rows, row_elements, [&](int64_t begin, int64_t end) { cpu(arguments, begin, end); });
}

}  // namespace tinyllama::kernels

// From tensors to range kernels: element types, checks and raw pointers. Internal to the kernels.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <vector>

#include "model/kernels/cpu/range_kernels.hpp"
#include "model/kernels/gpu_launch.hpp"
#include "model/meta_device.hpp"

/// One operator for profilers and operator counters; `name` is a literal.
#define TINYLLAMA_RECORD_KERNEL(name) \
  RECORD_FUNCTION("tinyllama::" name, c10::ArrayRef<const c10::IValue>{})

namespace tinyllama::kernels {

/// Those of the best instruction set that this processor has and ATEN_CPU_CAPABILITY, which limits
/// libtorch's kernels, allows.
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

/// That `tensor` has the type of `reference`, and is where it is.
inline void check_type(const at::Tensor& tensor, const char* name, const at::Tensor& reference,
                       const char* reference_name) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == reference.scalar_type(), name, " is ",
                    c10::toString(tensor.scalar_type()), ": it must be ",
                    c10::toString(reference.scalar_type()), ", as ", reference_name, " is");
  check_same_device(tensor, name, reference, reference_name);
}

inline c10::ScalarType compute_type_of(c10::ScalarType type) {
  return type == c10::ScalarType::Double ? type : c10::ScalarType::Float;
}

/// Not initialised, contiguous; on a CPU no operator of its own.
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

}  // namespace tinyllama::kernels

// Tensors of the fake GPU seen as tensors of the CPU, over the same memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <map>

namespace fake_gpu {

/// An uninitialised tensor of the GPU, from its allocator.
at::Tensor empty_on_gpu(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                        c10::DeviceIndex device);

class HostTensors {
 public:
  /// A CPU tensor over the memory of a GPU tensor; others as they are. It keeps no memory alive: as
  /// a kernel that is launched, it works on addresses.
  at::Tensor on_host(const at::Tensor& tensor);
  /// A GPU tensor over the memory that on_host() was given; undefined where the memory is another.
  at::Tensor back(const at::Tensor& tensor) const;

 private:
  std::map<const c10::StorageImpl*, c10::Storage> host_;
  std::map<const c10::StorageImpl*, c10::Storage> device_;
};

/// A value with f(tensor) for each tensor in it.
c10::IValue with_tensors(const c10::IValue& value,
                         const std::function<at::Tensor(const at::Tensor&)>& f);
void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& f);

}  // namespace fake_gpu

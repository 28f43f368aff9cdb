#include "tests/fakes/gpu/host_tensors.hpp"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>

#include "tests/fakes/gpu/fake_gpu.hpp"

namespace fake_gpu {
namespace {

at::Tensor view_of(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return tensor;
}

}  // namespace

at::Tensor empty_on_gpu(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                        c10::DeviceIndex device) {
  const c10::DeviceGuard guard(c10::Device(c10::kCUDA, device));
  return at::detail::empty_strided_generic(sizes, strides, &allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA), type);
}

at::Tensor HostTensors::on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  auto* const impl = tensor.storage().unsafeGetStorageImpl();
  c10::Storage& storage = host_[impl];
  if (!storage) {
    storage = c10::Storage(c10::Storage::use_byte_size_t(), impl->nbytes(),
                           c10::DataPtr(impl->mutable_data(), c10::Device(c10::kCPU)),
                           /*allocator=*/nullptr, /*resizable=*/false);
    device_[storage.unsafeGetStorageImpl()] = tensor.storage();
  }
  return view_of(storage, c10::DispatchKey::CPU, tensor);
}

at::Tensor HostTensors::back(const at::Tensor& tensor) const {
  const auto found = device_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == device_.end()) return {};
  return view_of(found->second, c10::DispatchKey::CUDA, tensor);
}

c10::IValue with_tensors(const c10::IValue& value,
                         const std::function<at::Tensor(const at::Tensor&)>& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorList()) mapped.push_back(f(tensor));
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      mapped.push_back(tensor ? std::optional(f(*tensor)) : tensor);
    return mapped;
  }
  return value;
}

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& f) {
  with_tensors(value, [&](const at::Tensor& tensor) {
    if (tensor.defined()) f(tensor);
    return tensor;
  });
}

}  // namespace fake_gpu

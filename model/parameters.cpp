#include "model/parameters.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

namespace tinyllama {

void append(NamedTensors& to, const NamedTensors& from) {
  to.insert(to.end(), from.begin(), from.end());
}

TensorInitializer::TensorInitializer(uint64_t seed, Dtype dtype, c10::Device device)
    : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)), dtype_(dtype), device_(device) {}

at::Tensor TensorInitializer::normal(at::IntArrayRef shape, double std) {
  if (device_.is_meta())
    return at::empty(shape, at::TensorOptions().dtype(storage_type(dtype_)).device(device_));
  // In float64, because float32 normal numbers differ in their last bits between processors.
  const at::Tensor drawn = at::empty(shape, c10::ScalarType::Double).normal_(0.0, std, generator_);
  // float16 first: what it holds of small values, bfloat16's 8 bits can then hold as well.
  const at::Tensor exact = drawn.to(c10::ScalarType::Half).to(c10::ScalarType::BFloat16);
  return exact.to(device_, storage_type(dtype_));
}

at::Tensor TensorInitializer::normal_parameter(at::IntArrayRef shape, double std) {
  return normal(shape, std).requires_grad_(true);
}

at::Tensor TensorInitializer::ones_parameter(at::IntArrayRef shape) {
  return at::ones(shape, at::TensorOptions().dtype(storage_type(dtype_)).device(device_))
      .requires_grad_(true);
}

at::Tensor TensorInitializer::tokens(at::IntArrayRef shape, int64_t end) {
  if (device_.is_meta())
    return at::empty(shape, at::TensorOptions().dtype(c10::ScalarType::Long).device(device_));
  return at::empty(shape, c10::ScalarType::Long).random_(0, end, generator_).to(device_);
}

}  // namespace tinyllama

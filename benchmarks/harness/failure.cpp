#include "benchmarks/harness/failure.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <new>
#include <stdexcept>

#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/memory_meter.hpp"

namespace tinyllama::harness {

void finish_backwards(const instruments::Device& device) {
  const at::AutoGradMode records(true);
  const auto options = at::TensorOptions().device(device.torch());
  const at::Tensor nothing = at::empty({0}, options).set_requires_grad(true);
  torch::autograd::backward({nothing * nothing}, {at::empty({0}, options)});
}

AllocationLimit::AllocationLimit(int64_t bytes)
    : before_(instruments::host_allocator::set_limit(bytes)) {}

AllocationLimit::~AllocationLimit() {
  instruments::host_allocator::set_limit(before_);
}

std::string failure_of(const instruments::Device& device, int64_t memory_limit_bytes,
                       const std::function<void()>& step) {
  std::string failure;
  try {
    const AllocationLimit limit(device.is_gpu() ? 0 : memory_limit_bytes);
    step();
    return {};
  } catch (const c10::OutOfMemoryError& error) {
    failure = fmt::format("out of memory: {}", error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    failure = "out of memory: the system refused an allocation";
  } catch (const c10::Error& error) {
    failure = error.what_without_backtrace();
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = "something was thrown that is no std::exception, and says nothing of itself";
  }
  try {
    finish_backwards(device);
  } catch (const std::exception&) {
    // not even this: the failure that led here is reported
  }
  return failure;
}

void release_memory(const instruments::Device& device) {
  failure_of(device, 0, [&] { instruments::release_cached_memory(device); });
}

}  // namespace tinyllama::harness

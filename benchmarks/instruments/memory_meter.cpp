#include "benchmarks/instruments/memory_meter.hpp"

#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "benchmarks/instruments/host_allocator.hpp"

namespace tinyllama::instruments {
namespace {

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

/// The caching allocator of a GPU. It comes to life with the first tensor and answers no question
/// before.
c10::DeviceAllocator* device_allocator(c10::Device device) {
  auto* allocator = c10::getDeviceAllocator(device.type());
  return allocator->initialized() ? allocator : nullptr;
}

/// With all allocations since the process started.
MemoryReading read_all(c10::Device device) {
  if (device.is_cpu()) {
    const HostMemory memory = host_allocator::read();
    MemoryReading reading{memory.live_bytes, memory.peak_bytes, memory.allocations,
                          memory.live_bytes + memory.scratch_live_bytes + memory.cached_bytes};
    if (host_allocator::tells_scratch_apart())
      reading.scratch_peak_bytes = memory.scratch_peak_bytes;
    return reading;
  }
  auto* allocator = device_allocator(device);
  if (allocator == nullptr) return {};
  const auto stats = allocator->getDeviceStats(device.index());
  return {stats.requested_bytes[kAll].current, stats.requested_bytes[kAll].peak,
          stats.allocation[kAll].allocated, stats.reserved_bytes[kAll].current};
}

}  // namespace

MemoryMeter::MemoryMeter(const Device& device) : device_(device.torch()) {
  start();
}

void MemoryMeter::start() {
  if (device_.is_cpu()) {
    host_allocator::reset_peak();
  } else if (auto* allocator = device_allocator(device_)) {
    allocator->resetPeakStats(device_.index());
  }
  allocations_at_start_ = read_all(device_).allocations;
}

MemoryReading MemoryMeter::read() const {
  MemoryReading reading = read_all(device_);
  reading.allocations -= allocations_at_start_;
  return reading;
}

void take_library_workspaces(const Device& device) {
  if (!device.is_gpu()) return;
  // A workspace is not of a type; in narrow ones a first GEMM may hang (CaseGuard::of), which must
  // not end runs that have none. With a bias, addmm takes cuBLASLt or hipBLASLt.
  constexpr int64_t size = 64;
  const auto options = at::TensorOptions().device(device.torch());
  const at::Tensor x = at::ones({size, size}, options).requires_grad_();
  const at::Tensor product = at::addmm(x[0], x.mm(x), x);
  at::bmm(product.unsqueeze(0), x.unsqueeze(0)).sum().backward();
  device.synchronize();
}

int64_t live_tensor_bytes(c10::Device device) {
  return read_all(device).live_bytes;
}

int64_t cached_memory_bytes(c10::Device device) {
  if (device.is_cpu()) return host_allocator::read().cached_bytes;
  auto* allocator = device_allocator(device);
  if (allocator == nullptr) return 0;
  const auto stats = allocator->getDeviceStats(device.index());
  return stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
}

std::string memory_source(const Device& device) {
  if (device.is_gpu()) {
    return "libtorch's caching allocator of the device: bytes asked for by live tensors, to the "
           "byte; workspaces of the math libraries are included where they come from it";
  }
  return std::string(
             "the suite's caching allocator for CPU tensors: bytes asked for by live tensors, to "
             "the byte; scratch memory of oneDNN is ") +
         (host_allocator::tells_scratch_apart() ? "counted apart (library_scratch_MiB)" : "in it") +
         ", that of BLAS is in neither";
}

void release_cached_memory(const Device& device) {
  if (!device.is_gpu()) {
    host_allocator::release_cached();
  } else if (auto* allocator = device_allocator(device.torch())) {
    allocator->emptyCache();
  }
}

}  // namespace tinyllama::instruments

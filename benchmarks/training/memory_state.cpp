#include "benchmarks/training/memory_state.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <fstream>

#include "benchmarks/instruments/host_allocator.hpp"

namespace tinyllama::training {

int64_t live_tensor_bytes(c10::Device device) {
  if (device.is_cpu()) return instruments::host_allocator::read().live_bytes;
  auto* allocator = c10::getDeviceAllocator(device.type());
  // It comes to life with the first tensor and answers no question before.
  if (!allocator->initialized()) return 0;
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator->getDeviceStats(device.has_index() ? device.index() : c10::DeviceIndex{0})
      .allocated_bytes[all]
      .current;
}

std::optional<int64_t> resident_set_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t program_pages = 0;
  int64_t resident_pages = 0;
  if (!(file >> program_pages >> resident_pages)) return std::nullopt;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

}  // namespace tinyllama::training

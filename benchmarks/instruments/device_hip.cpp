// The only file that calls the HIP runtime. Its twin for CUDA is device_cuda.cpp.
#include <fmt/format.h>
#include <hip/hip_runtime_api.h>

#include <array>
#include <stdexcept>
#include <string>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments::gpu_runtime {
namespace {

void check(hipError_t status, std::string_view call) {
  if (status != hipSuccess) {
    throw std::runtime_error(fmt::format("{} failed: {}", call, hipGetErrorString(status)));
  }
}

/// HIP_VERSION as HIP counts it: major * 10,000,000 + minor * 100,000 + patch.
std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10'000'000, version / 100'000 % 100, version % 100'000);
}

/// HIP tells the size of the second-level cache only. Behind it, CDNA 3 and CDNA 4 have a cache of
/// 256 MiB in front of the memory (AMD CDNA 3 and CDNA 4 architecture white papers, "AMD Infinity
/// Cache").
int64_t last_level_cache_bytes(const std::string& architecture, int64_t second_level_bytes) {
  constexpr int64_t infinity_cache_bytes = int64_t{256} << 20;
  const bool has_one = architecture == "gfx942" || architecture == "gfx950";
  return has_one ? infinity_cache_bytes : second_level_bytes;
}

/// Makes `index` the current device and puts the former one back, because hipMemGetInfo asks about
/// the current device.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) {
    check(hipGetDevice(&previous_), "hipGetDevice");
    check(hipSetDevice(index), "hipSetDevice");
  }
  ~CurrentDevice() { static_cast<void>(hipSetDevice(previous_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace

std::string_view name() {
  return "HIP";
}

int device_count() {
  int count = 0;
  // No driver and no device are answers here, not errors.
  return hipGetDeviceCount(&count) == hipSuccess ? count : 0;
}

DeviceDescription describe(int index) {
  hipDeviceProp_t properties{};
  check(hipGetDeviceProperties(&properties, index), "hipGetDeviceProperties");
  DeviceDescription description;
  description.name = properties.name;
  // "gfx90a:sramecc+:xnack-": what follows the colon are settings, not the architecture.
  const std::string architecture = properties.gcnArchName;
  description.architecture = architecture.substr(0, architecture.find(':'));
  description.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  description.multiprocessors = properties.multiProcessorCount;
  description.last_level_cache_bytes =
      last_level_cache_bytes(description.architecture, properties.l2CacheSize);
  int version = 0;
  check(hipRuntimeGetVersion(&version), "hipRuntimeGetVersion");
  description.runtime_version = "HIP " + version_text(version);
  check(hipDriverGetVersion(&version), "hipDriverGetVersion");
  description.driver_version = version_text(version);
  return description;
}

std::string pci_bus_id(int index) {
  std::array<char, 32> text{};
  check(hipDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), index),
        "hipDeviceGetPCIBusId");
  return text.data();
}

Memory memory(int index) {
  const CurrentDevice current(index);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(hipMemGetInfo(&free_bytes, &total_bytes), "hipMemGetInfo");
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

}  // namespace tinyllama::instruments::gpu_runtime

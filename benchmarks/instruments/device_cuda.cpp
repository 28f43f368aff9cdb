// The only file that calls the CUDA runtime. Its twin for HIP is device_hip.cpp.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <string>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments::gpu_runtime {
namespace {

void check(cudaError_t status, std::string_view call) {
  if (status != cudaSuccess) {
    throw std::runtime_error(fmt::format("{} failed: {}", call, cudaGetErrorString(status)));
  }
}

/// CUDART_VERSION as CUDA counts it: major * 1000 + minor * 10.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// Makes `index` the current device and puts the former one back, because cudaMemGetInfo asks about
/// the current device.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    check(cudaSetDevice(index), "cudaSetDevice");
  }
  ~CurrentDevice() { static_cast<void>(cudaSetDevice(previous_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace

std::string_view name() {
  return "CUDA";
}

int device_count() {
  int count = 0;
  // No driver and no device are answers here, not errors.
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

DeviceDescription describe(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  DeviceDescription description;
  description.name = properties.name;
  description.architecture = fmt::format("sm_{}{}", properties.major, properties.minor);
  description.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  description.multiprocessors = properties.multiProcessorCount;
  description.last_level_cache_bytes = properties.l2CacheSize;
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  description.runtime_version = "CUDA " + version_text(version);
  check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  description.driver_version = version_text(version);
  return description;
}

std::string pci_bus_id(int index) {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), index),
        "cudaDeviceGetPCIBusId");
  return text.data();
}

Memory memory(int index) {
  const CurrentDevice current(index);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

}  // namespace tinyllama::instruments::gpu_runtime

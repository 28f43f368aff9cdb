// The only file that calls the GPU's runtime: HIP's or CUDA's, whose functions have the same names
// but for a prefix. CMake defines TINY_LLAMA_HAS_HIP or TINY_LLAMA_HAS_CUDA; a build with neither
// knows no devices.
#include "benchmarks/instruments/device.hpp"

#if defined(TINY_LLAMA_HAS_HIP)
#include <hip/hip_runtime_api.h>
#define TINY_LLAMA_GPU(name) hip##name
#elif defined(TINY_LLAMA_HAS_CUDA)
#include <cuda_runtime_api.h>
#define TINY_LLAMA_GPU(name) cuda##name
#endif

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tinyllama::instruments::gpu_runtime {

#ifdef TINY_LLAMA_GPU
namespace {

void check(TINY_LLAMA_GPU(Error_t) status, std::string_view call) {
  if (status != TINY_LLAMA_GPU(Success)) {
    throw std::runtime_error(fmt::format("{}{} failed: {}", name() == "HIP" ? "hip" : "cuda", call,
                                         TINY_LLAMA_GPU(GetErrorString)(status)));
  }
}

#ifdef TINY_LLAMA_HAS_HIP
using Properties = hipDeviceProp_t;

/// HIP_VERSION as HIP counts it: major * 10,000,000 + minor * 100,000 + patch.
std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10'000'000, version / 100'000 % 100, version % 100'000);
}

/// "gfx90a:sramecc+:xnack-": what follows the colon are settings, not the architecture.
std::string architecture_of(const Properties& properties) {
  const std::string text = properties.gcnArchName;
  return text.substr(0, text.find(':'));
}

/// 16 characters, which HIP makes of what the card says.
std::string uuid_of(const Properties&, int index) {
  hipUUID uuid{};
  if (hipDeviceGetUuid(&uuid, index) != hipSuccess) return {};
  return "GPU-" + std::string(uuid.bytes, ::strnlen(uuid.bytes, sizeof uuid.bytes));
}
#else
using Properties = cudaDeviceProp;

/// CUDART_VERSION as CUDA counts it: major * 1000 + minor * 10.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string architecture_of(const Properties& properties) {
  return fmt::format("sm_{}{}", properties.major, properties.minor);
}

/// As nvidia-smi writes it.
std::string uuid_of(const Properties& properties, int) {
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return text;
}
#endif

}  // namespace

std::string_view name() {
#ifdef TINY_LLAMA_HAS_HIP
  return "HIP";
#else
  return "CUDA";
#endif
}

int device_count() {
  int count = 0;
  // No driver and no device are answers here, not errors.
  return TINY_LLAMA_GPU(GetDeviceCount)(&count) == TINY_LLAMA_GPU(Success) ? count : 0;
}

DeviceDescription describe(int index) {
  Properties properties{};
  check(TINY_LLAMA_GPU(GetDeviceProperties)(&properties, index), "GetDeviceProperties");
  DeviceDescription description;
  description.name = properties.name[0] != '\0' ? properties.name : "unnamed GPU";
  description.architecture = architecture_of(properties);
  description.uuid = uuid_of(properties, index);
  description.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  description.multiprocessors = properties.multiProcessorCount;
  description.last_level_cache_bytes =
      last_level_cache_bytes(description.architecture, properties.l2CacheSize);
  int version = 0;
  check(TINY_LLAMA_GPU(RuntimeGetVersion)(&version), "RuntimeGetVersion");
  description.runtime_version = fmt::format("{} {}", name(), version_text(version));
  check(TINY_LLAMA_GPU(DriverGetVersion)(&version), "DriverGetVersion");
  description.driver_version = version_text(version);
  return description;
}

std::string pci_bus_id(int index) {
  std::array<char, 32> text{};
  check(TINY_LLAMA_GPU(DeviceGetPCIBusId)(text.data(), static_cast<int>(text.size()), index),
        "DeviceGetPCIBusId");
  return text.data();
}

int64_t free_memory_bytes() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check(TINY_LLAMA_GPU(MemGetInfo)(&free_bytes, &total_bytes), "MemGetInfo");
  return static_cast<int64_t>(free_bytes);
}

#else

std::string_view name() {
  return {};
}

int device_count() {
  return 0;
}

DeviceDescription describe(int) {
  throw std::logic_error("this build has no GPU runtime to describe a device with");
}

std::string pci_bus_id(int) {
  throw std::logic_error("this build has no GPU runtime to ask for a bus address");
}

int64_t free_memory_bytes() {
  throw std::logic_error("this build has no GPU runtime to ask for memory");
}
#endif

}  // namespace tinyllama::instruments::gpu_runtime

#include <cstdio>
#include <cstring>

#include "tests/fakes/gpu/cuda/cuda_runtime_api.h"
#include "tests/fakes/gpu/fake_gpu.hpp"

namespace {

constexpr int kVersion = 13000;  // CUDA 13.0

int card_of(int device) {
  return fake_gpu::settings().are_partitions ? 0 : device;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake_gpu::settings().devices;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const auto& settings = fake_gpu::settings();
  if (device < 0 || device >= settings.devices) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "%s", settings.name.c_str());
  std::sscanf(settings.architecture.c_str(), "%d.%d", &properties->major, &properties->minor);
  std::memset(properties->uuid.bytes, 0xfa, sizeof properties->uuid.bytes);
  properties->uuid.bytes[0] = static_cast<char>(card_of(device));
  properties->totalGlobalMem = static_cast<size_t>(settings.memory_bytes);
  properties->multiProcessorCount = settings.multiprocessors;
  properties->l2CacheSize = 50 << 20;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", 0x5e + card_of(device));
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = static_cast<size_t>(fake_gpu::free_memory_bytes(fake_gpu::current_device()));
  *total = static_cast<size_t>(fake_gpu::settings().memory_bytes);
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid device ordinal";
}
}

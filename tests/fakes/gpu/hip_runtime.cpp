// HIP's functions, as far as gpu_runtime.cpp calls them.
#include <hip/hip_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "tests/fakes/gpu/fake_gpu.hpp"

extern "C" {

hipError_t hipGetDeviceCount(int* count) {
  *count = fake_gpu::settings().devices;
  return *count > 0 ? hipSuccess : hipErrorNoDevice;
}

hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  const auto& settings = fake_gpu::settings();
  if (device < 0 || device >= settings.devices) return hipErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "%s", settings.name.c_str());
  std::snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "%s:sramecc+:xnack-",
                settings.architecture.c_str());
  properties->totalGlobalMem = static_cast<size_t>(settings.memory_bytes);
  properties->multiProcessorCount = settings.multiprocessors;
  properties->l2CacheSize = 4 << 20;
  return hipSuccess;
}

hipError_t hipRuntimeGetVersion(int* version) {
  *version = HIP_VERSION;
  return hipSuccess;
}

hipError_t hipDriverGetVersion(int* version) {
  *version = HIP_VERSION;
  return hipSuccess;
}

hipError_t hipDeviceGetPCIBusId(char* text, int length, int device) {
  const int card = fake_gpu::settings().are_partitions ? 0 : device;
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.%d", 0xc1 + card, device - card);
  return hipSuccess;
}

hipError_t hipDeviceGetUuid(hipUUID* uuid, hipDevice_t device) {
  const int card = fake_gpu::settings().are_partitions ? 0 : device;
  char text[sizeof uuid->bytes + 1];
  std::snprintf(text, sizeof text, "fa4e000000000%03x", static_cast<unsigned>(card) & 0xfff);
  std::memcpy(uuid->bytes, text, sizeof uuid->bytes);
  return hipSuccess;
}

hipError_t hipMemGetInfo(size_t* free, size_t* total) {
  *free = static_cast<size_t>(fake_gpu::free_memory_bytes(fake_gpu::current_device()));
  *total = static_cast<size_t>(fake_gpu::settings().memory_bytes);
  return hipSuccess;
}

const char* hipGetErrorString(hipError_t error) {
  return error == hipSuccess ? "no error" : "invalid device ordinal";
}
}

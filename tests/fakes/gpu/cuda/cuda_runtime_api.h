// CUDA's runtime, as far as gpu_runtime.cpp calls it: names and types are those of CUDA's own
// header, functions those of the fake GPU (../cuda_runtime.cpp).
#pragma once

#include <cstddef>

enum cudaError_t { cudaSuccess = 0, cudaErrorNoDevice = 100, cudaErrorInvalidDevice = 101 };

struct cudaUUID_t {
  char bytes[16];
};

struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor;
  int multiProcessorCount;
  int l2CacheSize;
};

extern "C" {
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
const char* cudaGetErrorString(cudaError_t error);
}

// The few names in which HIP, CUDA and the emulation on the host differ, and how a kernel is
// launched.
#pragma once

#include <math.h>
#include <stdint.h>

#include "model/kernels/gpu/gpu_kernels.hpp"

#ifdef TINYLLAMA_GPU_EMULATED
#define TINYLLAMA_GPU_NAMESPACE gpu_emulated
#include "model/kernels/gpu/emulation.hpp"
#else
#define TINYLLAMA_GPU_NAMESPACE gpu_device
#include <stdexcept>
#include <string>
#ifdef __HIPCC__
#include <hip/hip_runtime.h>
#define TINYLLAMA_GPU_NAME(name) hip##name
#else
#include <cuda_runtime.h>
#define TINYLLAMA_GPU_NAME(name) cuda##name
#endif

namespace tinyllama::kernels::gpu_device {

/// Threads of a block are a power of two between these. Neither is tied to the width of a wave,
/// which is 32 or 64: threads of a block meet in shared memory only.
inline constexpr int kSmallestBlock = 64;
inline constexpr int kLargestBlock = 512;
/// Of a kernel whose threads go on to a next element.
inline constexpr int64_t kMostBlocks = 1024;

struct Grid {
  int64_t x = 1, y = 1;
};

/// kernel(arguments...) by grid.x * grid.y blocks; no block, no launch.
template <class... Parameters, class... Arguments>
void launch(GpuStream stream, Grid grid, int threads, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  if (grid.x <= 0 || grid.y <= 0) return;
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  kernel<<<blocks, dim3(static_cast<unsigned>(threads)), 0,
           static_cast<TINYLLAMA_GPU_NAME(Stream_t)>(stream)>>>(arguments...);
  const auto error = TINYLLAMA_GPU_NAME(GetLastError)();
  if (error != TINYLLAMA_GPU_NAME(Success)) {
    throw std::runtime_error(std::string("a kernel of ours was not launched: ") +
                             TINYLLAMA_GPU_NAME(GetErrorString)(error));
  }
}

/// Whether the program has `kernel` in a form that the current device can run.
template <class... Parameters>
bool runs_here(void (*kernel)(Parameters...)) {
  TINYLLAMA_GPU_NAME(FuncAttributes) attributes;
  const auto error =
      TINYLLAMA_GPU_NAME(FuncGetAttributes)(&attributes, reinterpret_cast<const void*>(kernel));
  // The answer "no" must not become the error of whoever asks next.
  static_cast<void>(TINYLLAMA_GPU_NAME(GetLastError)());
  return error == TINYLLAMA_GPU_NAME(Success);
}

}  // namespace tinyllama::kernels::gpu_device
#endif

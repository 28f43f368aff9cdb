// launch.hpp in a build with kernels for the GPUs of its libtorch (TINYLLAMA_HAS_GPU_KERNELS),
// and in one without: CMake says why in TINYLLAMA_WHY_NO_GPU_KERNELS.
#include "model/kernels/launch.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#ifdef TINYLLAMA_HAS_GPU_KERNELS
#include <c10/core/impl/VirtualGuardImpl.h>
#ifdef TINYLLAMA_ASK_CUDA_FOR_STREAM
#include <c10/cuda/CUDAStream.h>
#else
#include <c10/core/Stream.h>
#endif
#endif

namespace tinyllama::kernels {

#ifdef TINYLLAMA_HAS_GPU_KERNELS
const GpuKernels* gpu_kernels() {
  return &gpu_device::table();
}

std::string why_no_gpu_kernels(c10::Device device) {
  const c10::DeviceGuard guard(device);
  if (gpu_device::runs_on_current_device()) return {};
  return fmt::format("this build has kernels of ours for {}, none of which runs on {}",
                     TINYLLAMA_GPU_ARCHITECTURES, device.str());
}

GpuStream current_gpu_stream(c10::Device device) {
#ifdef TINYLLAMA_ASK_CUDA_FOR_STREAM
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
#else
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
#endif
}
#else
const GpuKernels* gpu_kernels() {
  return nullptr;
}

std::string why_no_gpu_kernels(c10::Device) {
  return "this build has no kernels of ours for GPUs: " TINYLLAMA_WHY_NO_GPU_KERNELS;
}

GpuStream current_gpu_stream(c10::Device device) {
  TORCH_CHECK(false, "no kernels for ", device, ": " TINYLLAMA_WHY_NO_GPU_KERNELS);
}
#endif

}  // namespace tinyllama::kernels

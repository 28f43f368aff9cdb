// launch.hpp in a build with kernels for the GPUs of its libtorch (TINYLLAMA_HAS_GPU_KERNELS),
// and in one without: libtorch has none, or there is no compiler for them.
#include "model/kernels/launch.hpp"

#include <c10/util/Exception.h>

#ifdef TINYLLAMA_HAS_GPU_KERNELS
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#endif

namespace tinyllama::kernels {

#ifdef TINYLLAMA_HAS_GPU_KERNELS
const GpuKernels* gpu_kernels() {
  return &gpu_device::table();
}

bool has_gpu_kernels() {
  return gpu_device::runs_on_current_device();
}

GpuStream current_gpu_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}
#else
const GpuKernels* gpu_kernels() {
  return nullptr;
}

bool has_gpu_kernels() {
  return false;
}

GpuStream current_gpu_stream(c10::Device device) {
  TORCH_CHECK(false, "this build has no kernels of ours for ", device);
}
#endif

}  // namespace tinyllama::kernels

// A build with kernels for the GPUs of its libtorch.
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "model/kernels/gpu_launch.hpp"

namespace tinyllama::kernels {

const GpuKernels* gpu_kernels() {
  return &gpu_device::table();
}

bool has_gpu_kernels() {
  return gpu_device::runs_on_current_device();
}

GpuStream current_gpu_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace tinyllama::kernels

// From tensors on a GPU to its kernels. Everything here exists in every build; one for CPUs has no
// kernels to launch, and its tensors are never on a GPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "model/kernels/gpu/gpu_kernels.hpp"

namespace tinyllama::kernels {

/// Fused kernels of our own were built for GPUs, and for an architecture like that of the current
/// device. Asks the GPU's runtime, which starts it: not for a process that computes on the CPU.
bool has_gpu_kernels();

/// Null in a build without them.
const GpuKernels* gpu_kernels();

/// On which libtorch enqueues work for this device, of which there are kernels.
GpuStream current_gpu_stream(c10::Device device);

/// launch(kernels, stream) with the entry of the table that Entry names, a tensor's device being
/// the current one.
template <class Entry, class Launch>
void launch_on_gpu(const at::Tensor& tensor, const Launch& launch) {
  const c10::DeviceGuard guard(tensor.device());
  launch(std::get<Entry>(*gpu_kernels()), current_gpu_stream(tensor.device()));
}

}  // namespace tinyllama::kernels

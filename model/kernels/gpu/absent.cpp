// A build without kernels for GPUs: libtorch has none, or there is no compiler for them.
#include <c10/util/Exception.h>

#include "model/kernels/gpu_launch.hpp"

namespace tinyllama::kernels {

const GpuKernels* gpu_kernels() {
  return nullptr;
}

bool has_gpu_kernels() {
  return false;
}

GpuStream current_gpu_stream(c10::Device device) {
  TORCH_CHECK(false, "this build has no kernels of ours for ", device);
}

}  // namespace tinyllama::kernels

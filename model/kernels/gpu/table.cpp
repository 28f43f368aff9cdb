// The table of kernels: compiled by hipcc or nvcc for GPUs, with TINYLLAMA_GPU_EMULATED by any
// compiler for tests.
#include "model/kernels/gpu/adamw.hpp"
#include "model/kernels/gpu/cross_entropy.hpp"
#include "model/kernels/gpu/rms_norm.hpp"
#include "model/kernels/gpu/rotary.hpp"
#include "model/kernels/gpu/swiglu.hpp"

namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE {
namespace {

template <class T>
void enter(GpuKernelsOf<T>& kernels) {
  kernels.rms_norm = &rms_norm<T>;
  kernels.rotary = &rotary<T>;
  kernels.swiglu = &swiglu<T>;
  kernels.swiglu_gradient = &swiglu_gradient<T>;
  kernels.cross_entropy = &cross_entropy<T>;
  kernels.adamw = &adamw<T>;
}

template <class T, class Branch>
void enter(GpuNormKernels<T, Branch>& kernels) {
  kernels.add_rms_norm = &add_rms_norm<T, Branch>;
  kernels.rms_norm_gradient = &rms_norm_gradient<T, Branch>;
}

GpuKernels make_table() {
  GpuKernels kernels{};
  std::apply([](auto&... entries) { (enter(entries), ...); }, kernels);
  return kernels;
}

/// Asked about instead of a kernel at work: clang 15 leaves out the definition of a kernel template
/// whose address a function that is no template takes first.
__global__ void nothing() {}

}  // namespace

const GpuKernels& table() {
  static const GpuKernels kernels = make_table();
  return kernels;
}

bool runs_on_current_device() {
  return runs_here(&nothing);
}

}  // namespace tinyllama::kernels::TINYLLAMA_GPU_NAMESPACE

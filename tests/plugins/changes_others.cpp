// A right operator in a library that changes, as it is loaded, what all code of the process
// computes: a kernel of libtorch's, or, linked with -ffast-math, the processor's mode of floating
// point.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace {

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return gate * gate.sigmoid() * up;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(changer, library) {
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor", swiglu);
}

#ifdef REPLACES_A_KERNEL
TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("silu", [](const at::Tensor& x) { return x * x.sigmoid(); });
}
#endif

// A library whose one operator fills no slot, or whose kernel does not fit the schema beside it;
// without it, one that registers nothing.
#ifdef WITH_AN_OPERATOR
#include <ATen/ATen.h>
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(stranger, library) {
  library.def("layer_norm(Tensor x) -> Tensor", [](const at::Tensor& x) { return x; });
#ifdef WITH_ANOTHER_KERNEL
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
              [](const at::Tensor& x) { return x; });
#endif
}
#else
extern "C" int nothing() {
  return 0;
}
#endif

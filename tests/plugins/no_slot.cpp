// A library whose one operator fills no slot; without it, one that registers nothing.
#ifdef WITH_AN_OPERATOR
#include <ATen/ATen.h>
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(stranger, library) {
  library.def("layer_norm(Tensor x) -> Tensor", [](const at::Tensor& x) { return x; });
}
#else
extern "C" int nothing() {
  return 0;
}
#endif

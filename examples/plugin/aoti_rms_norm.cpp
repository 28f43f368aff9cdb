// An operator written in Python: export_rms_norm.py compiles it into packages (AOTInductor), which
// libtorch runs without Python. They lie beside this library.
#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/library.h>

#include <filesystem>
#include <string>
#include <tuple>

namespace {

std::string beside_this_library(const std::string& file) {
  Dl_info library;
  dladdr(reinterpret_cast<const void*>(&beside_this_library), &library);
  return std::filesystem::path(library.dli_fname).replace_filename(file);
}

struct Packages {
  explicit Packages(const std::string& type)
      : forward(beside_this_library("rms_norm." + type + ".pt2")),
        backward(beside_this_library("rms_norm_backward." + type + ".pt2")) {}
  torch::inductor::AOTIModelPackageLoader forward;
  torch::inductor::AOTIModelPackageLoader backward;
};

// A package has one type, and the numbers that it was exported with.
Packages& packages_for(const at::Tensor& x, double eps) {
  TORCH_CHECK(eps == 1e-5, "the packages have eps 1e-5, not ", eps);
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
              "there are packages for float32 and bfloat16, not for ", x.scalar_type());
  static Packages f32("float32");
  static Packages bf16("bfloat16");
  return x.scalar_type() == at::kFloat ? f32 : bf16;
}

// A package relies on the strides of its examples: contiguous matrices.
at::Tensor as_matrix(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)}).contiguous();
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return packages_for(x, eps).forward.run({as_matrix(x), weight.contiguous()})[0].view(x.sizes());
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& gradient,
                                                     const at::Tensor& x, const at::Tensor& weight,
                                                     double eps) {
  const auto gradients =
      packages_for(x, eps).backward.run({as_matrix(gradient), as_matrix(x), weight.contiguous()});
  return {gradients[0].view(x.sizes()), gradients[1]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aoti, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def(
      "rms_norm_backward(Tensor gradient, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(aoti, CPU, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("rms_norm_backward", rms_norm_backward);
}

// A known slowdown: copies of the model's own fused norms that spin, in the forward, for a fraction
// of the time that they took (SPIN_FRACTION; 0 without it). Comparisons are calibrated by it.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <tuple>

#include "model/kernels/kernels.hpp"

namespace {

using at::Tensor;

double spin_fraction() {
  static const double fraction = [] {
    const char* const text = std::getenv("SPIN_FRACTION");
    if (text == nullptr) return 0.0;
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0 && value <= 10))
      throw std::invalid_argument(std::string("SPIN_FRACTION=") + text +
                                  ": must be a fraction from 0 to 10");
    return value;
  }();
  return fraction;
}

template <class Work>
auto slowed(const Work& work) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto result = work();
  const std::chrono::duration<double> longer = spin_fraction() * (Clock::now() - begin);
  const auto now = Clock::now();
  while (Clock::now() - now < longer) {
  }
  return result;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return slowed([&] { return tinyllama::kernels::rms_norm(x, weight, eps); });
}

std::tuple<Tensor, Tensor> rms_norm_residual(const Tensor& residual, const Tensor& branch,
                                             const Tensor& weight, double eps) {
  return slowed([&] {
    auto [sum, normalized] = tinyllama::kernels::add_rms_norm(residual, branch, weight, eps);
    return std::tuple<Tensor, Tensor>(sum, normalized);
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(slow, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", rms_norm);
  library.def(
      "rms_norm_residual(Tensor residual, Tensor branch, Tensor weight, float eps) -> (Tensor, "
      "Tensor)",
      rms_norm_residual);
}

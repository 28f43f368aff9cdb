// Operators that fill slots as no plug-in should, each in a namespace that says how, and copies of
// the model's own. One library, because a build of each would take longer than all tests.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <chrono>
#include <limits>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "model/kernels/kernels.hpp"

namespace {

using at::Tensor;

Tensor right(const Tensor& x, const Tensor& weight, double eps) {
  const auto wide = at::promote_types(x.scalar_type(), at::kFloat);
  const Tensor values = x.to(wide);
  const Tensor inverse = (values.pow(2).mean(-1, true) + eps).rsqrt();
  return weight * (values * inverse).to(x.scalar_type());
}

Tensor zeros(const Tensor& x, const Tensor& weight, double eps) {
  return right(x, weight, eps) * 0;
}

Tensor cached(const Tensor& x, const Tensor& weight, double eps) {
  static Tensor first;
  if (!first.defined() || first.sizes() != x.sizes()) first = right(x, weight, eps);
  return first;
}

Tensor nan_at_odd_sizes(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor result = right(x, weight, eps);
  return x.size(1) % 2 == 0 ? result : result * std::numeric_limits<double>::quiet_NaN();
}

Tensor cut(const Tensor& x, const Tensor& weight, double eps) {
  return right(x.detach(), weight, eps);
}

Tensor throws(const Tensor& x, const Tensor& /*weight*/, double /*eps*/) {
  throw std::runtime_error("this kernel wants rows of 12 and got " + std::to_string(x.size(-1)));
}

// What no code should throw, and no handler of std::exception sees.
Tensor throws_number(const Tensor& /*x*/, const Tensor& /*weight*/, double /*eps*/) {
  throw 42;
}

Tensor exits(const Tensor& x, const Tensor& /*weight*/, double /*eps*/) {
  std::exit(0);
  return x;
}

Tensor other_shape(const Tensor& x, const Tensor& weight, double eps) {
  return right(x, weight, eps).flatten();
}

Tensor other_type(const Tensor& x, const Tensor& weight, double eps) {
  return right(x, weight, eps).to(at::kDouble);
}

Tensor crashes(const Tensor& x, const Tensor& /*weight*/, double /*eps*/) {
  volatile float* const nowhere = reinterpret_cast<float*>(x.size(-1));
  *nowhere = 1;
  return x;
}

Tensor hoards(const Tensor& x, const Tensor& weight, double eps) {
  static std::vector<Tensor> kept;
  try {
    for (;;) kept.push_back(at::ones({1 << 24}));
  } catch (...) {
    kept.clear();
    throw;
  }
  return right(x, weight, eps);
}

Tensor hangs(const Tensor& x, const Tensor& /*weight*/, double /*eps*/) {
  for (volatile bool forever = true; forever;)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return x;
}

Tensor sets_threads(const Tensor& x, const Tensor& weight, double eps) {
  at::set_num_threads(1);
  return right(x, weight, eps);
}

Tensor stops_recording(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor result = right(x, weight, eps);
  at::GradMode::set_enabled(false);
  return result;
}

Tensor sets_type(const Tensor& x, const Tensor& weight, double eps) {
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(at::kDouble));
  return right(x, weight, eps);
}

Tensor draws(const Tensor& x, const Tensor& weight, double eps) {
  return right(x, weight, eps) + 0 * at::rand({1}).item<double>();
}

Tensor linear(const Tensor& x, const Tensor& weight) {
  return at::linear(x, weight);
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            int64_t ignore_index) {
  const Tensor logits = at::linear(x, weight);
  const auto wide = at::promote_types(logits.scalar_type(), at::kFloat);
  return at::cross_entropy_loss(logits.to(wide), targets, {}, at::Reduction::Mean, ignore_index);
}

void adamw_step_(at::TensorList parameters, at::TensorList gradients, at::TensorList exp_avgs,
                 at::TensorList exp_avg_sqs, int64_t step, double lr, double beta1, double beta2,
                 double eps, double weight_decay) {
  tinyllama::kernels::adamw_(parameters, gradients, exp_avgs, exp_avg_sqs,
                             {lr, beta1, beta2, eps, weight_decay}, step);
}

std::tuple<Tensor, Tensor> rms_norm_residual(const Tensor& residual, const Tensor& branch,
                                             const Tensor& weight, double eps) {
  auto [sum, normalized] = tinyllama::kernels::add_rms_norm(residual, branch, weight, eps);
  return {sum, normalized};
}

// A pair with a backward of its own, which asks for what it needs by name: here the tables alone.
Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const Tensor turned = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
  return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1);
}

Tensor rotated_back(const Tensor& gradient, const Tensor& sin, const Tensor& cos) {
  return rotated(gradient, cos, -sin);
}

constexpr const char* kRmsNorm = "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor";

}  // namespace

// Without a kernel of its own for a device: composite, so that autograd sees what it is made of.
#define OPERATOR_OF(NAMESPACE, FUNCTION)                                                           \
  TORCH_LIBRARY_FRAGMENT(NAMESPACE, library) {                                                     \
    library.def(kRmsNorm,                                                                          \
                torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(FUNCTION))); \
  }
OPERATOR_OF(right, right)
OPERATOR_OF(zeros, zeros)
OPERATOR_OF(cached, cached)
OPERATOR_OF(odd, nan_at_odd_sizes)
OPERATOR_OF(cut, cut)
OPERATOR_OF(throws, throws)
OPERATOR_OF(throws_number, throws_number)
OPERATOR_OF(exits, exits)
OPERATOR_OF(other_shape, other_shape)
OPERATOR_OF(other_type, other_type)
OPERATOR_OF(crashes, crashes)
OPERATOR_OF(hoards, hoards)
OPERATOR_OF(hangs, hangs)
OPERATOR_OF(sets_threads, sets_threads)
OPERATOR_OF(stops_recording, stops_recording)
OPERATOR_OF(sets_type, sets_type)
OPERATOR_OF(draws, draws)

TORCH_LIBRARY_FRAGMENT(copy, library) {
  library.def(kRmsNorm, tinyllama::kernels::rms_norm);
  library.def(
      "rms_norm_residual(Tensor residual, Tensor branch, Tensor weight, float eps) -> (Tensor, "
      "Tensor)",
      rms_norm_residual);
  library.def("causal_attention(Tensor q, Tensor k, Tensor v, float scale) -> Tensor",
              [](const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
                return tinyllama::kernels::causal_attention(q, k, v, scale);
              });
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor", tinyllama::kernels::swiglu);
  library.def("linear(Tensor x, Tensor weight) -> Tensor", linear);
  library.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, int ignore_index) -> Tensor",
      linear_cross_entropy);
  library.def(
      "adamw_step_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] exp_avgs, "
      "Tensor(c!)[] exp_avg_sqs, int step, float lr, float beta1, float beta2, float eps, float "
      "weight_decay) -> ()");
  library.def("rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor");
  library.def("rotary_backward(Tensor gradient, Tensor sin, Tensor cos) -> Tensor");
}
TORCH_LIBRARY_IMPL(copy, CPU, library) {
  library.impl("adamw_step_", adamw_step_);
  library.impl("rotary", rotated);
  library.impl("rotary_backward", rotated_back);
}

TORCH_LIBRARY_FRAGMENT(forward_only, library) {
  library.def(kRmsNorm);
}
TORCH_LIBRARY_IMPL(forward_only, CPU, library) {
  library.impl("rms_norm", right);
}

TORCH_LIBRARY_FRAGMENT(other_schema, library) {
  library.def("rms_norm(Tensor x, Tensor weight) -> Tensor",
              [](const Tensor& x, const Tensor& weight) { return right(x, weight, 1e-5); });
}

TORCH_LIBRARY_FRAGMENT(other_backward, library) {
  library.def(kRmsNorm);
  library.def("rms_norm_backward(Tensor gradient, Tensor rstd) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(other_backward, CPU, library) {
  library.impl("rms_norm", right);
}

TORCH_LIBRARY_FRAGMENT(no_cpu, library) {
  library.def(kRmsNorm);
}
TORCH_LIBRARY_IMPL(no_cpu, AutogradCUDA, library) {
  library.impl("rms_norm", right);
}

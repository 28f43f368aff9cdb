#include "model/adamw.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace tinyllama {
namespace {

NamedTensors zeros_like_each(const NamedTensors& parameters) {
  NamedTensors zeros;
  for (const auto& [name, parameter] : parameters) {
    zeros.emplace_back(name, at::zeros_like(parameter, c10::MemoryFormat::Contiguous));
  }
  return zeros;
}

}  // namespace

AdamW::AdamW(NamedTensors parameters, const Variant& /*variant*/, const AdamWOptions& options)
    : parameters_(std::move(parameters)),
      first_moments_(zeros_like_each(parameters_)),
      second_moments_(zeros_like_each(parameters_)),
      options_(options) {}

void AdamW::step() {
  const at::NoGradGuard no_grad;
  ++steps_done_;
  const auto t = static_cast<double>(steps_done_);
  const double correction1 = 1.0 - std::pow(options_.beta1, t);
  const double correction2 = 1.0 - std::pow(options_.beta2, t);
  const double step_size = options_.learning_rate / correction1;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].second;
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    at::Tensor& m = first_moments_[i].second;
    at::Tensor& v = second_moments_[i].second;
    parameter.mul_(1.0 - options_.learning_rate * options_.weight_decay);
    m.lerp_(gradient, 1.0 - options_.beta1);
    v.mul_(options_.beta2).addcmul_(gradient, gradient, 1.0 - options_.beta2);
    const at::Tensor denominator = v.sqrt().div_(std::sqrt(correction2)).add_(options_.eps);
    parameter.addcdiv_(m, denominator, -step_size);
  }
}

void AdamW::clear_gradients() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

}  // namespace tinyllama

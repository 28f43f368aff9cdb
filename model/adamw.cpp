#include "model/adamw.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

namespace tinyllama {
namespace {

// In the parameter's own order of elements, so that all four can be walked side by side.
NamedTensors zeros_like_each(const NamedTensors& parameters) {
  NamedTensors zeros;
  for (const auto& [name, parameter] : parameters) {
    zeros.emplace_back(name, at::zeros_like(parameter.detach(), c10::MemoryFormat::Preserve));
  }
  return zeros;
}

}  // namespace

AdamW::AdamW(NamedTensors parameters, const Variant& variant, const AdamWOptions& options)
    : parameters_(std::move(parameters)),
      first_moments_(zeros_like_each(parameters_)),
      second_moments_(zeros_like_each(parameters_)),
      options_(options),
      foreach_(variant.has(Switch::foreach_adamw)),
      fused_(variant.has(Switch::fused_adamw)),
      library_(variant.has(Switch::library_adamw)),
      operator_(copy_of(variant.filling(Slot::adamw_step_))) {
  if (parameters_.empty() || (!variant.has(Switch::graph) && !library_)) return;
  // libtorch's own update reads a float32.
  const auto type = library_ ? c10::ScalarType::Float : c10::ScalarType::Double;
  device_steps_ =
      at::zeros({}, parameters_.front().second.options().dtype(type).requires_grad(false));
}

void AdamW::set_steps_done(int64_t steps) {
  steps_done_ = steps;
  if (device_steps_.defined()) device_steps_.fill_(static_cast<double>(steps));
}

at::Tensor AdamW::count_on_device() {
  const at::Tensor steps = device_steps_.add_(1);
  const at::Tensor second_scale = (1.0 - at::pow(options_.beta2, steps)).rsqrt_();
  const at::Tensor step_size = options_.learning_rate / (1.0 - at::pow(options_.beta1, steps));
  return at::stack({second_scale, step_size});
}

void AdamW::step() {
  const at::NoGradGuard no_grad;
  ++steps_done_;
  const Lists lists = with_gradients();
  if (lists.parameters.empty()) return set_steps_done(steps_done_);
  if (operator_) {
    step_by_operator(lists);
  } else if (library_) {
    step_by_library(lists);
  } else if (fused_) {
    step_fused(lists);
  } else if (foreach_) {
    step_by_lists(lists);
  } else {
    step_one_by_one(lists);
  }
}

AdamW::Lists AdamW::with_gradients() const {
  Lists lists;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    if (!parameter.grad().defined()) continue;
    lists.parameters.push_back(parameter);
    lists.gradients.push_back(parameter.grad());
    lists.first_moments.push_back(first_moments_[i].second);
    lists.second_moments.push_back(second_moments_[i].second);
  }
  return lists;
}

double AdamW::bias_correction(double beta) const {
  return 1.0 - std::pow(beta, static_cast<double>(steps_done_));
}

void AdamW::step_one_by_one(const Lists& lists) {
  const double step_size = options_.learning_rate / bias_correction(options_.beta1);
  const double root_correction2 = std::sqrt(bias_correction(options_.beta2));
  at::Tensor corrections;
  // In the parameters' type: lists of another one are handled tensor by tensor.
  if (device_steps_.defined())
    corrections = count_on_device().to(lists.parameters.front().scalar_type());
  for (size_t i = 0; i < lists.parameters.size(); ++i) {
    const at::Tensor& parameter = lists.parameters[i];
    const at::Tensor& gradient = lists.gradients[i];
    const at::Tensor& m = lists.first_moments[i];
    const at::Tensor& v = lists.second_moments[i];
    parameter.mul_(1.0 - options_.learning_rate * options_.weight_decay);
    m.lerp_(gradient, 1.0 - options_.beta1);
    v.mul_(options_.beta2).addcmul_(gradient, gradient, 1.0 - options_.beta2);
    if (corrections.defined()) {
      const at::Tensor denominator = v.sqrt().mul_(corrections[0]).add_(options_.eps);
      parameter.sub_(m.div(denominator).mul_(corrections[1]));
    } else {
      const at::Tensor denominator = v.sqrt().div_(root_correction2).add_(options_.eps);
      parameter.addcdiv_(m, denominator, -step_size);
    }
  }
}

// The same operations in the same order, each over all parameters.
void AdamW::step_by_lists(const Lists& lists) {
  at::_foreach_mul_(lists.parameters, 1.0 - options_.learning_rate * options_.weight_decay);
  at::_foreach_lerp_(lists.first_moments, lists.gradients, 1.0 - options_.beta1);
  at::_foreach_mul_(lists.second_moments, options_.beta2);
  at::_foreach_addcmul_(lists.second_moments, lists.gradients, lists.gradients,
                        1.0 - options_.beta2);
  std::vector<at::Tensor> denominators = at::_foreach_sqrt(lists.second_moments);
  if (device_steps_.defined()) {
    const at::Tensor corrections = count_on_device().to(lists.parameters.front().scalar_type());
    at::_foreach_mul_(denominators, corrections[0]);
    at::_foreach_add_(denominators, options_.eps);
    std::vector<at::Tensor> changes = at::_foreach_div(lists.first_moments, denominators);
    at::_foreach_mul_(changes, corrections[1]);
    at::_foreach_sub_(lists.parameters, changes);
    return;
  }
  at::_foreach_div_(denominators, std::sqrt(bias_correction(options_.beta2)));
  at::_foreach_add_(denominators, options_.eps);
  at::_foreach_addcdiv_(lists.parameters, lists.first_moments, denominators,
                        -options_.learning_rate / bias_correction(options_.beta1));
}

void AdamW::step_fused(const Lists& lists) {
  kernels::adamw_(lists.parameters, lists.gradients, lists.first_moments, lists.second_moments,
                  options_, steps_done_,
                  device_steps_.defined() ? count_on_device() : at::Tensor());
}

void AdamW::step_by_library(const Lists& lists) {
  device_steps_.add_(1);
  const std::vector<at::Tensor> steps(lists.parameters.size(), device_steps_);
  at::_fused_adamw_(lists.parameters, lists.gradients, lists.first_moments, lists.second_moments,
                    /*max_exp_avg_sqs=*/{}, steps, options_.learning_rate, options_.beta1,
                    options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false,
                    /*maximize=*/false);
}

void AdamW::step_by_operator(const Lists& lists) {
  (*operator_)({lists.parameters, lists.gradients, lists.first_moments, lists.second_moments,
                steps_done_, options_.learning_rate, options_.beta1, options_.beta2, options_.eps,
                options_.weight_decay});
}

void AdamW::clear_gradients() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

Cost optimizer_cost(const Workload& workload) {
  Cost cost;
  cost.parameters = count_parameters(workload.config);
  // Decay 1, first moment 3, second moment 4, root, division, eps, and 3 to apply. Reads p, g, m,
  // v; writes p, m, v.
  cost.elementwise_flops = 14 * cost.parameters;
  cost.bytes = 7 * cost.parameters * storage_bytes(workload.dtype);
  return cost;
}

}  // namespace tinyllama

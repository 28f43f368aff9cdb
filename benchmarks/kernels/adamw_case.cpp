#include <ATen/ATen.h>

#include <cmath>
#include <memory>

#include "benchmarks/kernels/kernel_cases.hpp"
#include "model/kernels/adamw.hpp"

namespace tinyllama::kernel_benchmark {
namespace {

constexpr kernels::AdamWScalars kScalars = {.learning_rate = 1e-4,
                                            .beta1 = 0.9,
                                            .beta2 = 0.999,
                                            .eps = 1e-8,
                                            .weight_decay = 0.01,
                                            .step = 10};

/// A model's parameters with gradients and moments.
struct State {
  Tensors parameters, gradients, first_moments, second_moments, steps;

  void add(at::IntArrayRef shape, c10::ScalarType type) {
    const auto random = [&] {
      return at::randn(shape, at::TensorOptions().dtype(c10::ScalarType::Float)).to(type);
    };
    parameters.push_back(random());
    gradients.push_back(random());
    first_moments.push_back(random());
    second_moments.push_back(random().abs());
    steps.push_back(at::full({}, static_cast<double>(kScalars.step), at::kFloat));
  }
};

std::shared_ptr<State> state_of(const Shape& s, c10::ScalarType type) {
  const int64_t kv_width = s.n_kv_heads * s.head_dim();
  auto state = std::make_shared<State>();
  state->add({s.vocab_size, s.hidden_dim}, type);
  for (int64_t layer = 0; layer < s.n_layers; ++layer) {
    state->add({s.hidden_dim}, type);
    state->add({s.hidden_dim, s.hidden_dim}, type);
    state->add({kv_width, s.hidden_dim}, type);
    state->add({kv_width, s.hidden_dim}, type);
    state->add({s.hidden_dim, s.hidden_dim}, type);
    state->add({s.hidden_dim}, type);
    state->add({s.intermediate_dim, s.hidden_dim}, type);
    state->add({s.intermediate_dim, s.hidden_dim}, type);
    state->add({s.hidden_dim, s.intermediate_dim}, type);
  }
  state->add({s.hidden_dim}, type);
  state->add({s.vocab_size, s.hidden_dim}, type);
  return state;
}

// As torch.optim.AdamW(foreach=True).
void foreach_step(State& state) {
  constexpr double t = kScalars.step;
  const double correction1 = 1.0 - std::pow(kScalars.beta1, t);
  const double correction2 = 1.0 - std::pow(kScalars.beta2, t);
  at::_foreach_mul_(state.parameters, 1.0 - kScalars.learning_rate * kScalars.weight_decay);
  at::_foreach_lerp_(state.first_moments, state.gradients, 1.0 - kScalars.beta1);
  at::_foreach_mul_(state.second_moments, kScalars.beta2);
  at::_foreach_addcmul_(state.second_moments, state.gradients, state.gradients,
                        1.0 - kScalars.beta2);
  const Tensors denominators = at::_foreach_sqrt(state.second_moments);
  at::_foreach_div_(denominators, std::sqrt(correction2));
  at::_foreach_add_(denominators, kScalars.eps);
  at::_foreach_addcdiv_(state.parameters, state.first_moments, denominators,
                        -kScalars.learning_rate / correction1);
}

}  // namespace

KernelCase adamw_case(const Shape& shape, c10::ScalarType type) {
  KernelCase result;
  result.kernel = "adamw";
  result.pass = "update";
  result.size = shape.name;
  const auto state = state_of(shape, type);
  for (const at::Tensor& parameter : state->parameters)
    result.bytes += static_cast<int64_t>(7 * parameter.nbytes());
  const auto nothing = [] {};
  result.contenders = {
      {"own", nothing,
       [state] {
         kernels::adamw_(state->parameters, state->gradients, state->first_moments,
                         state->second_moments, kScalars);
       }},
      {"at::_fused_adamw_", nothing,
       [state] {
         at::_fused_adamw_(state->parameters, state->gradients, state->first_moments,
                           state->second_moments, {}, state->steps, kScalars.learning_rate,
                           kScalars.beta1, kScalars.beta2, kScalars.weight_decay, kScalars.eps,
                           /*amsgrad=*/false, /*maximize=*/false);
       }},
      {"foreach", nothing, [state] { foreach_step(*state); }},
  };
  return result;
}

}  // namespace tinyllama::kernel_benchmark

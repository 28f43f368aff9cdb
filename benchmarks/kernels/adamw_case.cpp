#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <memory>

#include "benchmarks/kernels/kernel_cases.hpp"
#include "model/adamw.hpp"
#include "model/tiny_llama.hpp"

namespace tinyllama::kernel_benchmark {
namespace {

constexpr AdamWOptions kOptions;

// A model's parameters, with gradients that stay.
NamedTensors parameters_of(const ProblemSize& size, Dtype dtype) {
  TensorInitializer initializer(1, dtype, c10::kCPU);
  NamedTensors parameters =
      TinyLlama(size.config, Variant(), /*max_seq=*/1, initializer).parameters();
  for (const auto& [name, parameter] : parameters)
    parameter.mutable_grad() = random(parameter.sizes(), dtype);
  return parameters;
}

// The model's own optimizer; every contender has moments of its own.
Contender contender(const char* name, const NamedTensors& parameters, Switch option) {
  const auto optimizer = std::make_shared<AdamW>(parameters, Variant({option}), kOptions);
  return {name, [] {}, [optimizer] { optimizer->step(); }};
}

Contender library_contender(const NamedTensors& parameters) {
  struct Lists {
    Tensors parameters, gradients, first_moments, second_moments, steps;
  };
  const auto lists = std::make_shared<Lists>();
  for (const auto& [name, parameter] : parameters) {
    lists->parameters.push_back(parameter.detach());
    lists->gradients.push_back(parameter.grad());
    lists->first_moments.push_back(at::zeros_like(parameter.detach()));
    lists->second_moments.push_back(at::zeros_like(parameter.detach()));
    lists->steps.push_back(at::full({}, 1.0, at::kFloat));
  }
  return {"at::_fused_adamw_", [] {},
          [lists] {
            at::_fused_adamw_(lists->parameters, lists->gradients, lists->first_moments,
                              lists->second_moments, {}, lists->steps, kOptions.learning_rate,
                              kOptions.beta1, kOptions.beta2, kOptions.weight_decay, kOptions.eps,
                              /*amsgrad=*/false, /*maximize=*/false);
          }};
}

}  // namespace

KernelCase adamw_case(KernelCase about, const ProblemSize& size, Dtype dtype) {
  about.kernel = "adamw";
  about.pass = "update";
  const NamedTensors parameters = parameters_of(size, dtype);
  for (const auto& [name, parameter] : parameters)
    about.bytes += static_cast<int64_t>(7 * parameter.nbytes());
  about.contenders = {contender("own", parameters, Switch::fused_adamw),
                      library_contender(parameters),
                      contender("foreach", parameters, Switch::foreach_adamw)};
  return about;
}

}  // namespace tinyllama::kernel_benchmark

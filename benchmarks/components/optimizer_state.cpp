#include "benchmarks/components/optimizer_state.hpp"

#include <c10/core/GradMode.h>

#include "benchmarks/components/layer_inputs.hpp"

namespace tinyllama::components {
namespace {

// Powers of two keep values exact in every type. Twice kInitialStd at most: with less the smallest
// gradients of a small model would be below what float16 holds.
constexpr double kWeightStd = 0x1p-5;
constexpr double kFirstMomentStd = 0x1p-7;
constexpr double kSecondMoment = 0x1p-12;

}  // namespace

void set_mid_training_state(AdamW& optimizer, TensorInitializer& initializer) {
  for (const auto& [name, moment] : optimizer.first_moments())
    moment.copy_(initializer.normal(moment.sizes(), 1e-2));
  for (const auto& [name, moment] : optimizer.second_moments()) moment.fill_(kSecondMoment);
}

void begin_anew(AdamW& optimizer, const harness::BuildRequest& request, uint64_t seed) {
  const at::NoGradGuard no_grad;
  TensorInitializer initializer(seed, request.workload.dtype, request.device);
  // A prime, so that rows of matrices begin at different places of it.
  constexpr int64_t length = 65'537;
  const at::Tensor drawn = initializer.normal({length});
  const auto fill = [&](const at::Tensor& tensor, int64_t first, double std) {
    const int64_t count = tensor.numel();
    const at::Tensor values = drawn.roll(first).repeat({count / length + 1}).narrow(0, 0, count);
    tensor.copy_(values.mul_(std).view(tensor.sizes()));
  };
  int64_t place = 0;
  for (const auto& [name, parameter] : optimizer.parameters()) {
    if (parameter.dim() == 1) {
      harness::scale_by_turns(parameter.detach().fill_(1));
    } else {
      fill(parameter.detach(), ++place, kWeightStd);
    }
  }
  if (request.weights != nullptr) {
    load_weights(request, optimizer.parameters());
    // else what was kept of them in the first step would be right again
    harness::reverse_in_place(optimizer.parameters());
  }
  for (const auto& [name, moment] : optimizer.first_moments())
    fill(moment, ++place, kFirstMomentStd);
  for (const auto& [name, moment] : optimizer.second_moments()) moment.fill_(kSecondMoment);
  optimizer.set_steps_done(0);
}

NamedTensors moments(const AdamW& optimizer) {
  NamedTensors all = optimizer.first_moments();
  append(all, optimizer.second_moments());
  return all;
}

NamedTensors optimizer_results(const AdamW& optimizer) {
  NamedTensors all;
  for (const auto& [name, tensor] : optimizer.parameters())
    all.emplace_back("updated " + name, tensor.detach());
  for (const auto& [name, tensor] : optimizer.first_moments())
    all.emplace_back("first moment of " + name, tensor);
  for (const auto& [name, tensor] : optimizer.second_moments())
    all.emplace_back("second moment of " + name, tensor);
  return all;
}

}  // namespace tinyllama::components

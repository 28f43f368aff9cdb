#include "benchmarks/components/optimizer_state.hpp"

namespace tinyllama::components {

void set_mid_training_state(AdamW& optimizer, TensorInitializer& initializer) {
  for (const auto& [name, moment] : optimizer.first_moments())
    moment.copy_(initializer.normal(moment.sizes(), 1e-2));
  for (const auto& [name, moment] : optimizer.second_moments()) moment.fill_(0x1p-12);
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

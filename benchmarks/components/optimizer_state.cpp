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

// Normal numbers from a table: drawing one for each of a model's would take longer than its step.
class DrawnTable {
 public:
  explicit DrawnTable(TensorInitializer& initializer) : drawn_(initializer.normal({kLength})) {}

  /// Each tensor begins elsewhere in the table. A power of two for `std` keeps them exact.
  void fill(const at::Tensor& tensor, double std) {
    const int64_t count = tensor.numel();
    const at::Tensor often = (drawn_ * std).repeat({count / kLength + 2});
    tensor.copy_(often.narrow(0, ++place_ % kLength, count).view(tensor.sizes()));
  }

 private:
  // A prime, so that rows of matrices begin at different places of it.
  static constexpr int64_t kLength = 65'537;
  at::Tensor drawn_;
  int64_t place_ = 0;
};

void fill_moments(AdamW& optimizer, DrawnTable& table) {
  for (const auto& [name, moment] : optimizer.first_moments()) table.fill(moment, kFirstMomentStd);
  for (const auto& [name, moment] : optimizer.second_moments()) moment.fill_(kSecondMoment);
}

}  // namespace

void set_mid_training_state(AdamW& optimizer, TensorInitializer& initializer) {
  DrawnTable table(initializer);
  fill_moments(optimizer, table);
}

void begin_anew(AdamW& optimizer, const harness::BuildRequest& request, uint64_t seed) {
  const at::NoGradGuard no_grad;
  TensorInitializer initializer(seed, request.workload.dtype, request.device);
  DrawnTable table(initializer);
  for (const auto& [name, parameter] : optimizer.parameters()) {
    if (parameter.dim() == 1) {
      harness::scale_by_turns(parameter.detach().fill_(1));
    } else {
      table.fill(parameter.detach(), kWeightStd);
    }
  }
  if (request.weights != nullptr) {
    load_weights(request, optimizer.parameters());
    // else what was kept of them in the first step would be right again
    harness::reverse_in_place(optimizer.parameters());
  }
  fill_moments(optimizer, table);
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

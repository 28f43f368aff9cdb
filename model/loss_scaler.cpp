#include "model/loss_scaler.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace tinyllama {
namespace {

// Defaults of torch.amp.GradScaler.
constexpr double kInitialScale = 65536.0;
constexpr double kGrowthFactor = 2.0;
constexpr double kBackoffFactor = 0.5;
constexpr int64_t kGrowthInterval = 2000;

}  // namespace

LossScaler::LossScaler(c10::Device device)
    : scale_(at::full({}, kInitialScale,
                      at::TensorOptions().dtype(c10::ScalarType::Float).device(device))),
      growth_tracker_(
          at::zeros({}, at::TensorOptions().dtype(c10::ScalarType::Int).device(device))) {}

at::Tensor LossScaler::scale(const at::Tensor& loss) const {
  return loss * scale_;
}

bool LossScaler::unscale_and_step(AdamW& optimizer) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : optimizer.parameters()) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  at::Tensor found_non_finite = at::zeros({}, scale_.options());
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_non_finite, scale_.reciprocal());
  // On meta there is no value to look at: as if all were finite, for that step takes more memory.
  const bool finite = found_non_finite.is_meta() || found_non_finite.item<float>() == 0.0f;
  if (finite) optimizer.step();
  at::_amp_update_scale_(scale_, growth_tracker_, found_non_finite, kGrowthFactor, kBackoffFactor,
                         kGrowthInterval);
  return finite;
}

double LossScaler::current_scale() const {
  return scale_.item<float>();
}

}  // namespace tinyllama

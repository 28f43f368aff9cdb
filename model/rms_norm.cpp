#include "model/rms_norm.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>

#include "model/component_range.hpp"
#include "model/kernels/kernels.hpp"

namespace tinyllama {
namespace {

at::Tensor plain_rms_norm(const at::Tensor& hidden_states, const at::Tensor& weight, double eps) {
  const auto input_type = hidden_states.scalar_type();
  const auto wide_type = at_least_float(input_type);
  const at::Tensor x = hidden_states.to(wide_type);
  const at::Tensor mean_square = x.pow(2).mean(-1, /*keepdim=*/true);
  const at::Tensor normalized = x * at::rsqrt(mean_square + eps);
  return weight * normalized.to(input_type);
}

}  // namespace

at::Tensor add_residual(const at::Tensor& stream, const at::Tensor& branch) {
  const ComponentRange range("residual");
  return stream + branch;
}

RmsNorm::RmsNorm(int64_t width, double eps, const Variant& variant, TensorInitializer& initializer)
    : weight_(initializer.ones_parameter({width})),
      eps_(eps),
      fused_(variant.has(Switch::fused_norm)),
      operator_(copy_of(variant.filling(Slot::rms_norm))),
      residual_operator_(copy_of(variant.filling(Slot::rms_norm_residual))) {}

at::Tensor RmsNorm::forward(const at::Tensor& hidden_states) const {
  const ComponentRange range("rms_norm");
  if (operator_) return (*operator_)({hidden_states, weight_, eps_}).front();
  // Under autocast a projection's heads are narrower than the weight.
  return fused_ ? kernels::rms_norm(hidden_states.to(weight_.scalar_type()), weight_, eps_)
                : plain_rms_norm(hidden_states, weight_, eps_);
}

RmsNorm::Sum RmsNorm::add_and_normalize(const at::Tensor& stream, const at::Tensor& branch) const {
  if (residual_operator_) {
    const ComponentRange range("rms_norm");
    auto results = (*residual_operator_)({stream, branch, weight_, eps_});
    return {std::move(results[0]), std::move(results[1])};
  }
  // An operator that normalises is called for every norm, after a sum where there is one.
  if (fused_ && !operator_) {
    const ComponentRange range("rms_norm");
    auto [sum, normalized] = kernels::add_rms_norm(stream, branch, weight_, eps_);
    return {std::move(sum), std::move(normalized)};
  }
  const at::Tensor sum = add_residual(stream, branch);
  return {sum, forward(sum)};
}

NamedTensors RmsNorm::parameters(const std::string& prefix) const {
  return {{prefix + "weight", weight_}};
}

namespace {

// Of T rows of D elements of e bytes.
Cost cost_of_rows(int64_t T, int64_t D, int64_t e, Pass pass) {
  // Forward per element: square, add, two products; per row: division, eps, root. Backward per
  // element: two for the weight's gradient, one for its product, two for the row's dot product,
  // three to combine; per row: two.
  return select_halves(
      pass, D,
      {with_traffic({}, 4 * T * D + 3 * T, 2 * T * D * e + D * e + T * kStatisticBytes),
       with_traffic({}, 8 * T * D + 2 * T, 3 * T * D * e + 2 * D * e + T * kStatisticBytes)});
}

}  // namespace

Cost rms_norm_cost(const Workload& workload, Pass pass) {
  return cost_of_rows(workload.tokens(), workload.config.hidden_dim(),
                      storage_bytes(workload.dtype), pass);
}

Cost qk_norm_cost(const Workload& workload, Pass pass) {
  const ModelConfig& config = workload.config;
  const int64_t e = compute_bytes(workload.dtype);
  return cost_of_rows(workload.tokens() * config.n_heads(), config.head_dim(), e, pass) +
         cost_of_rows(workload.tokens() * config.n_kv_heads(), config.head_dim(), e, pass);
}

}  // namespace tinyllama

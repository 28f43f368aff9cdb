#include "model/feed_forward.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/silu.h>

#include "model/component_range.hpp"
#include "model/kernels/kernels.hpp"

namespace tinyllama {
FeedForward::FeedForward(const ModelConfig& config, const Variant& variant,
                         TensorInitializer& initializer)
    : merged_(variant.has(Switch::gate_up)),
      fused_swiglu_(variant.has(Switch::fused_swiglu)),
      swiglu_operator_(copy_of(variant.filling(Slot::swiglu))),
      gate_up_(config.hidden_dim(), {config.intermediate_dim(), config.intermediate_dim()}, merged_,
               variant, initializer, config.mlp_bias()),
      down_(config.intermediate_dim(), config.hidden_dim(), variant, initializer,
            config.mlp_bias()) {}

// silu(gate) * up, [B, S, D_ff]
at::Tensor FeedForward::activation(const at::Tensor& hidden_states) const {
  const bool in_one = merged_ && fused_swiglu_;
  const std::vector<at::Tensor> parts = [&] {
    const ComponentRange range("ffn/gate_up_proj");
    return in_one ? std::vector<at::Tensor>{gate_up_.forward(hidden_states)}
                  : gate_up_.forward_parts(hidden_states);
  }();
  const ComponentRange range("ffn/swiglu");
  if (in_one) return kernels::swiglu_merged(parts[0]);
  if (swiglu_operator_) return (*swiglu_operator_)({parts[0], parts[1]}).front();
  return fused_swiglu_ ? kernels::swiglu(parts[0], parts[1]) : at::silu(parts[0]) * parts[1];
}

at::Tensor FeedForward::forward(const at::Tensor& hidden_states) const {
  const at::Tensor active = activation(hidden_states);
  const ComponentRange range("ffn/down_proj");
  return down_.forward(active);
}

NamedTensors FeedForward::parameters(const std::string& prefix) const {
  NamedTensors all = gate_up_.parameters(prefix + "gate_proj.", 0);
  append(all, gate_up_.parameters(prefix + "up_proj.", 1));
  append(all, down_.parameters(prefix + "down_proj."));
  return all;
}

Cost feed_forward_cost(const Workload& workload, Pass pass) {
  const int64_t D = workload.config.hidden_dim();
  const int64_t F = workload.config.intermediate_dim();
  const int64_t T = workload.tokens();
  const int64_t e = storage_bytes(workload.dtype);
  const int64_t weights = 3 * D * F;
  const Cost forward_gemms = gemm_cost(2 * T * weights);
  const int64_t saved = 2 * T * F * compute_bytes(workload.dtype);  // gate and up
  const int64_t biases = workload.config.mlp_bias() ? T * (2 * F + D) : 0;
  // silu: negation, exp, sum, division; then the product. Backward: two products, and silu' from a
  // recomputed sigmoid (8). A bias: an addition an element, in both directions.
  Cost cost = select_halves(
      pass, feed_forward_parameters(workload.config),
      {with_traffic(forward_gemms, 5 * T * F + biases, 2 * T * D * e + weights * e + saved),
       with_traffic(2 * forward_gemms, 10 * T * F + biases,
                    3 * T * D * e + 2 * weights * e + saved)});
  if (workload.config.has_vocabulary_share()) cost += all_reduces_of_a_layer(workload, pass);
  return cost;
}

}  // namespace tinyllama

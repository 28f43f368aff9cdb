#include "model/rotary.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <c10/util/Exception.h>

#include <numbers>

#include "model/component_range.hpp"
#include "model/kernels/kernels.hpp"

namespace tinyllama {
namespace {

// [.., head_dim] -> (-second half, first half)
at::Tensor rotate_half(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
}

// Radians a position.
at::Tensor scaled(const at::Tensor& frequencies, const RopeScaling& scaling) {
  const at::Tensor slow = frequencies / scaling.factor;
  if (scaling.type == RopeScaling::Type::none) return frequencies;
  if (scaling.type == RopeScaling::Type::linear) return slow;
  // Turns within the positions of the first training say how much of a frequency is kept
  // (_compute_llama3_parameters, transformers/modeling_rope_utils.py).
  const at::Tensor turns =
      frequencies * (static_cast<double>(scaling.original_positions) / (2 * std::numbers::pi));
  const at::Tensor kept =
      ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor))
          .clamp(0, 1);
  return slow * (1 - kept) + frequencies * kept;
}

}  // namespace

RotaryTable::RotaryTable(const ModelConfig& config, const Variant& variant, int64_t max_seq,
                         Dtype dtype, c10::Device device)
    : fused_(variant.has(Switch::fused_rotary)), operator_(copy_of(variant.filling(Slot::rotary))) {
  // Angles are float32, as LlamaForCausalLM has them whatever the type of its weights, but every
  // function is evaluated in float64 and then rounded: float32 functions differ in the last bit
  // between processors, and a float64 proof must hold on each.
  const auto f64 = at::TensorOptions()
                       .dtype(c10::ScalarType::Double)
                       .device(device.is_meta() ? device : c10::Device(c10::kCPU));
  const auto head_dim = config.head_dim();
  const at::Tensor exponents = at::arange(0, head_dim, 2, f64) / static_cast<double>(head_dim);
  const at::Tensor inverse_frequency =
      scaled(at::pow(config.rope_theta(), exponents).reciprocal(), config.rope_scaling())
          .to(c10::ScalarType::Float);
  const at::Tensor angles =
      at::outer(at::arange(max_seq, f64.dtype(c10::ScalarType::Float)), inverse_frequency)
          .to(c10::ScalarType::Double);
  // Both halves of a head turn by the same angles.
  const at::Tensor table = at::cat({angles, angles}, -1).unsqueeze(1);
  const auto rounded = [&](const at::Tensor& values) {
    return values.to(c10::ScalarType::Float).to(device, compute_type(dtype));
  };
  cos_ = rounded(table.cos());
  sin_ = rounded(table.sin());
}

at::Tensor RotaryTable::rotate(const at::Tensor& x) const {
  const ComponentRange range("attention/rotary");
  const int64_t seq = x.size(1);
  TORCH_CHECK_VALUE(seq <= cos_.size(0), "sequence length ", seq,
                    ": the rotary table was made for at most ", cos_.size(0), " positions");
  if (fused_) return kernels::rotate(x, cos_, sin_);
  const at::Tensor cos = cos_.narrow(0, 0, seq);
  const at::Tensor sin = sin_.narrow(0, 0, seq);
  if (operator_) return (*operator_)({x, cos.squeeze(1), sin.squeeze(1)}).front();
  return x * cos + rotate_half(x) * sin;
}

Cost rotary_cost(const Workload& workload, Pass pass) {
  const int64_t T = workload.tokens();
  const int64_t c = compute_bytes(workload.dtype);
  const int64_t elements = T * (workload.config.q_dim() + workload.config.kv_dim());
  const int64_t table_bytes = 2 * workload.seq * workload.config.head_dim() * c;
  // Two products and a sum an element, in both directions: the transpose of a rotation is a
  // rotation.
  const Cost either = with_traffic({}, 3 * elements, 2 * elements * c + table_bytes);
  return select_halves(pass, 0, {either, either});
}

}  // namespace tinyllama

#include "model/rotary.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <c10/util/Exception.h>

namespace tinyllama {
namespace {

// [.., head_dim] -> (-second half, first half)
at::Tensor rotate_half(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
}

}  // namespace

RotaryTable::RotaryTable(const ModelConfig& config, int64_t max_seq, Dtype dtype,
                         c10::Device device) {
  const auto f32 = at::TensorOptions().dtype(c10::ScalarType::Float);
  const auto head_dim = config.head_dim();
  const at::Tensor exponents = at::arange(0, head_dim, 2, f32) / static_cast<double>(head_dim);
  const at::Tensor inverse_frequency = at::pow(config.rope_theta(), exponents).reciprocal();
  const at::Tensor angles = at::outer(at::arange(max_seq, f32), inverse_frequency);
  // Both halves of a head turn by the same angles.
  const at::Tensor table = at::cat({angles, angles}, -1).unsqueeze(1);
  cos_ = table.cos().to(device, compute_type(dtype));
  sin_ = table.sin().to(device, compute_type(dtype));
}

at::Tensor RotaryTable::rotate(const at::Tensor& x) const {
  const int64_t seq = x.size(1);
  TORCH_CHECK_VALUE(seq <= cos_.size(0), "sequence length ", seq,
                    ": the rotary table was made for at most ", cos_.size(0), " positions");
  return x * cos_.narrow(0, 0, seq) + rotate_half(x) * sin_.narrow(0, 0, seq);
}

}  // namespace tinyllama

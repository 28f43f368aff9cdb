// Rotary position embedding, rotate-half convention: element i pairs with element i + head_dim / 2.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "model/config.hpp"
#include "model/cost.hpp"
#include "model/dtype.hpp"
#include "model/variant.hpp"

namespace tinyllama {

/// cos and sin of every position's angles, for sequences of up to `max_seq` tokens.
class RotaryTable {
 public:
  /// Angles are position * theta^(-2i / head_dim), scaled as the model says, in float32, as in
  /// LlamaRotaryEmbedding (also for float64 models, so that every dtype rotates by the same
  /// angles); their cosines and sines are rounded to float32 and then to the type in which matrices
  /// are multiplied.
  RotaryTable(const ModelConfig& config, const Variant& variant, int64_t max_seq, Dtype dtype,
              c10::Device device);

  /// x [B, S, heads, head_dim] -> x * cos + rotate_half(x) * sin, same shape. S must not exceed
  /// max_seq.
  at::Tensor rotate(const at::Tensor& x) const;

 private:
  at::Tensor cos_;  // [max_seq, 1, head_dim]
  at::Tensor sin_;  // [max_seq, 1, head_dim]
  bool fused_;
  std::optional<SlotOperator> operator_;
};

/// Rotation of Q and of K.
Cost rotary_cost(const Workload& workload, Pass pass);

}  // namespace tinyllama

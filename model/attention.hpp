// Grouped-query attention with rotary embedding, materialised scores and a causal mask.
#pragma once

#include "model/config.hpp"
#include "model/parameters.hpp"
#include "model/rotary.hpp"
#include "model/variant.hpp"

namespace tinyllama {

class Attention {
 public:
  Attention(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer);

  /// hidden_states [B, S, D], mask from causal_mask(S) -> [B, S, D].
  at::Tensor forward(const at::Tensor& hidden_states, const RotaryTable& rotary,
                     const at::Tensor& mask) const;
  NamedTensors parameters(const std::string& prefix) const;

 private:
  ModelConfig config_;
  at::Tensor q_proj_;  // [D, D]
  at::Tensor k_proj_;  // [KV x head_dim, D]
  at::Tensor v_proj_;  // [KV x head_dim, D]
  at::Tensor o_proj_;  // [D, D]
};

/// What is added to the scores of one KV head: 0 where a query may look, -inf at later positions;
/// [groups x S, S], the S x S mask once for each query head that shares the KV head.
at::Tensor causal_mask(const ModelConfig& config, int64_t seq, Dtype dtype, c10::Device device);

}  // namespace tinyllama

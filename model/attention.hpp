// Grouped-query attention with rotary embedding and a causal mask.
#pragma once

#include "model/linear.hpp"
#include "model/rotary.hpp"

namespace tinyllama {

class Attention {
 public:
  Attention(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer);

  /// hidden_states [B, S, D], mask from attention_mask(S) -> [B, S, D].
  at::Tensor forward(const at::Tensor& hidden_states, const RotaryTable& rotary,
                     const at::Tensor& mask) const;
  NamedTensors parameters(const std::string& prefix) const;

 private:
  /// q [B, S, H, head_dim], k and v [B, S, KV, head_dim] of hidden states, not yet rotated.
  std::vector<at::Tensor> project(const at::Tensor& hidden_states) const;

  ModelConfig config_;
  Variant variant_;
  Linear qkv_;     // Q [D, D], K and V [KV x head_dim, D]
  Linear o_proj_;  // [D, D]
};

/// What is added to the scores of one KV head: 0 where a query may look, -inf at later positions;
/// [groups x S, S], the S x S mask once for each query head that shares the KV head. Undefined
/// where the variant's attention needs no mask in memory.
at::Tensor attention_mask(const ModelConfig& config, const Variant& variant, int64_t seq,
                          Dtype dtype, c10::Device device);

}  // namespace tinyllama

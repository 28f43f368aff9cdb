// One transformer layer: attention and feed-forward network, each behind a norm and beside a
// residual connection.
#pragma once

#include "model/attention.hpp"
#include "model/cost.hpp"
#include "model/feed_forward.hpp"
#include "model/model_hooks.hpp"
#include "model/rms_norm.hpp"

namespace tinyllama {

class Block {
 public:
  Block(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer);

  /// hidden_states [B, S, D] -> [B, S, D]. `hooks` must outlive the backward; null: none.
  at::Tensor forward(const at::Tensor& hidden_states, const RotaryTable& rotary,
                     const at::Tensor& mask, ModelHooks* hooks = nullptr) const;
  NamedTensors parameters(const std::string& prefix) const;

 private:
  at::Tensor run(const at::Tensor& hidden_states, const RotaryTable& rotary, const at::Tensor& mask,
                 ModelHooks* hooks) const;

  RmsNorm attention_norm_;
  Attention attention_;
  RmsNorm feed_forward_norm_;
  FeedForward feed_forward_;
  bool checkpoint_;
};

/// Two norms, attention, feed-forward network, two residual additions.
Cost block_cost(const Workload& workload, Pass pass);

}  // namespace tinyllama

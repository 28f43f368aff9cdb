#include "model/block.hpp"

#include <ATen/TensorOperators.h>

namespace tinyllama {

Block::Block(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer)
    : attention_norm_(config, initializer),
      attention_(config, variant, initializer),
      feed_forward_norm_(config, initializer),
      feed_forward_(config, variant, initializer) {}

at::Tensor Block::forward(const at::Tensor& hidden_states, const RotaryTable& rotary,
                          const at::Tensor& mask) const {
  const at::Tensor attended =
      hidden_states + attention_.forward(attention_norm_.forward(hidden_states), rotary, mask);
  return attended + feed_forward_.forward(feed_forward_norm_.forward(attended));
}

NamedTensors Block::parameters(const std::string& prefix) const {
  NamedTensors all = attention_norm_.parameters(prefix + "input_layernorm.");
  append(all, attention_.parameters(prefix + "self_attn."));
  append(all, feed_forward_norm_.parameters(prefix + "post_attention_layernorm."));
  append(all, feed_forward_.parameters(prefix + "mlp."));
  return all;
}

}  // namespace tinyllama

#include "model/block.hpp"

#include "model/checkpoint.hpp"
#include "model/residual.hpp"

namespace tinyllama {

Block::Block(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer)
    : attention_norm_(config, variant, initializer),
      attention_(config, variant, initializer),
      feed_forward_norm_(config, variant, initializer),
      feed_forward_(config, variant, initializer),
      checkpoint_(variant.has(Switch::checkpoint)) {}

at::Tensor Block::forward(const at::Tensor& hidden_states, const RotaryTable& rotary,
                          const at::Tensor& mask) const {
  if (!checkpoint_) return run(hidden_states, rotary, mask);
  // Copies of tensor handles, so that the backward needs nothing else to be alive.
  return checkpointed(
      [block = *this, rotary, mask](const at::Tensor& x) { return block.run(x, rotary, mask); },
      hidden_states);
}

at::Tensor Block::run(const at::Tensor& hidden_states, const RotaryTable& rotary,
                      const at::Tensor& mask) const {
  const auto [attended, normalized] = feed_forward_norm_.add_and_normalize(
      hidden_states, attention_.forward(attention_norm_.forward(hidden_states), rotary, mask));
  return add_residual(attended, feed_forward_.forward(normalized));
}

NamedTensors Block::parameters(const std::string& prefix) const {
  NamedTensors all = attention_norm_.parameters(prefix + "input_layernorm.");
  append(all, attention_.parameters(prefix + "self_attn."));
  append(all, feed_forward_norm_.parameters(prefix + "post_attention_layernorm."));
  append(all, feed_forward_.parameters(prefix + "mlp."));
  return all;
}

}  // namespace tinyllama

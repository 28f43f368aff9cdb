// LM head and cross-entropy together, by chunks of tokens: logits exist for one chunk at a time,
// and in no wider type than the product gives (the idea of Liger Kernel's fused linear
// cross-entropy, Hsu et al., 2024, arXiv:2410.10989).
#pragma once

#include "model/products.hpp"

namespace tinyllama {

/// hidden_states [B, S, D], weight [V, D], targets [B, S] int64 -> mean cross-entropy over the
/// targets that are not kIgnoredTarget, in at least float32. Where gradients are recorded, the
/// forward computes them as well, while a chunk's logits are at hand; the backward only scales.
at::Tensor fused_loss(const at::Tensor& hidden_states, const at::Tensor& weight,
                      const at::Tensor& targets, const Products& products);

/// Tokens of a chunk: enough for efficient products, few enough that their logits stay in a cache.
int64_t fused_loss_chunk(int64_t tokens, int64_t vocab_size);

}  // namespace tinyllama

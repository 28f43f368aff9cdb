#include "model/loss.hpp"

#include <ATen/core/Reduction.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>

#include <stdexcept>

#include "model/component_range.hpp"
#include "model/fused_loss.hpp"

namespace tinyllama {

at::Tensor next_token_targets(const at::Tensor& tokens) {
  const int64_t seq = tokens.size(1);
  if (seq < 2) {
    throw std::invalid_argument(
        fmt::format("seq = {}: the next-token loss needs at least 2 tokens a sample", seq));
  }
  return at::constant_pad_nd(tokens.narrow(1, 1, seq - 1), {0, 1}, kIgnoredTarget);
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const auto wide_type = at_least_float(logits.scalar_type());
  return at::cross_entropy_loss(logits.view({-1, logits.size(-1)}).to(wide_type), targets.view(-1),
                                /*weight=*/{}, at::Reduction::Mean, kIgnoredTarget);
}

LmHead::LmHead(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer)
    : projection_(config.hidden_dim(), config.vocab_size(), variant, initializer),
      products_(variant),
      fused_loss_(variant.has(Switch::fused_loss)) {}

at::Tensor LmHead::forward(const at::Tensor& hidden_states) const {
  const ComponentRange range("loss/lm_head");
  return projection_.forward(hidden_states);
}

at::Tensor LmHead::loss(const at::Tensor& hidden_states, const at::Tensor& targets) const {
  if (fused_loss_) {
    const ComponentRange range("loss/fused");
    return fused_loss(hidden_states, projection_.weight(), targets, products_);
  }
  const at::Tensor logits = forward(hidden_states);
  const ComponentRange range("loss/cross_entropy");
  return next_token_loss(logits, targets);
}

NamedTensors LmHead::parameters(const std::string& prefix) const {
  return {{prefix + "weight", projection_.weight()}};
}

}  // namespace tinyllama

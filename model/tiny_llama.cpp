#include "model/tiny_llama.hpp"

#include <fmt/format.h>

namespace tinyllama {
namespace {

std::vector<Block> make_blocks(const ModelConfig& config, const Variant& variant,
                               TensorInitializer& initializer) {
  std::vector<Block> blocks;
  for (int64_t layer = 0; layer < config.n_layers(); ++layer) {
    blocks.emplace_back(config, variant, initializer);
  }
  return blocks;
}

}  // namespace

TinyLlama::TinyLlama(const ModelConfig& config, const Variant& variant, int64_t max_seq,
                     TensorInitializer& initializer)
    : config_(config),
      variant_(variant),
      dtype_(initializer.dtype()),
      max_seq_(max_seq),
      embedding_(config, initializer),
      blocks_(make_blocks(config, variant, initializer)),
      final_norm_(config, variant, initializer),
      lm_head_(config, variant, initializer),
      rotary_(config, variant, max_seq, dtype_, initializer.device()),
      mask_(attention_mask(config, variant, max_seq, dtype_, initializer.device())) {}

at::Tensor TinyLlama::final_hidden_states(const at::Tensor& tokens) const {
  const int64_t seq = tokens.size(1);
  const at::Tensor mask =
      seq == max_seq_ ? mask_ : attention_mask(config_, variant_, seq, dtype_, tokens.device());
  at::Tensor hidden_states = embedding_.forward(tokens);
  for (const Block& block : blocks_) hidden_states = block.forward(hidden_states, rotary_, mask);
  return final_norm_.forward(hidden_states);
}

at::Tensor TinyLlama::logits(const at::Tensor& tokens) const {
  return lm_head_.forward(final_hidden_states(tokens));
}

at::Tensor TinyLlama::loss(const at::Tensor& tokens, const at::Tensor& targets) const {
  return lm_head_.loss(final_hidden_states(tokens), targets);
}

NamedTensors TinyLlama::parameters() const {
  NamedTensors all = embedding_.parameters("model.embed_tokens.");
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    append(all, blocks_[layer].parameters(fmt::format("model.layers.{}.", layer)));
  }
  append(all, final_norm_.parameters("model.norm."));
  append(all, lm_head_.parameters("lm_head."));
  return all;
}

Cost model_cost(const Workload& workload, Pass pass) {
  const Cost body = embedding_cost(workload, pass) +
                    workload.config.n_layers() * block_cost(workload, pass) +
                    rms_norm_cost(workload, pass);
  if (pass != Pass::forward) return body + loss_cost(workload, pass);
  Workload with_logits = workload;
  with_logits.variant = workload.variant.without(Switch::fused_loss);
  Cost head = loss_cost(with_logits, pass);
  head.elementwise_flops = 0;
  const int64_t T = workload.tokens();
  const int64_t D = workload.config.hidden_dim();
  const int64_t V = workload.config.vocab_size();
  head.bytes =
      (T * D + V * D) * storage_bytes(workload.dtype) + T * V * compute_bytes(workload.dtype);
  return body + head;
}

}  // namespace tinyllama

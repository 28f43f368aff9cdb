#include "model/tiny_llama.hpp"

#include <ATen/TensorOperators.h>
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
      rotary_(config, variant, max_seq, dtype_, initializer.device()),
      mask_(attention_mask(config, variant, max_seq, dtype_, initializer.device())) {
  if (!config.only_layers()) embedding_.emplace(config, initializer);
  blocks_ = make_blocks(config, variant, initializer);
  if (config.only_layers()) return;
  final_norm_.emplace(config.hidden_dim(), config.norm_eps(), variant, initializer);
  if (config.tied_embeddings()) {
    lm_head_.emplace(embedding_->weight(), config, variant);
  } else {
    lm_head_.emplace(config, variant, initializer);
  }
}

template <class Compute>
at::Tensor TinyLlama::run_part(size_t part, const Compute& compute) const {
  if (hooks_ == nullptr) return compute();
  hooks_->before_part(part);
  at::Tensor output = compute();
  hooks_->after_part(part, output);
  return output;
}

at::Tensor TinyLlama::run_layers(const at::Tensor& hidden_states) const {
  const int64_t seq = hidden_states.size(1);
  const at::Tensor mask =
      seq == max_seq_ ? mask_
                      : attention_mask(config_, variant_, seq, dtype_, hidden_states.device());
  at::Tensor x = hidden_states;
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    x = run_part(layer + 1, [&] { return blocks_[layer].forward(x, rotary_, mask, hooks_); });
  }
  return x;
}

at::Tensor TinyLlama::embed(const at::Tensor& tokens) const {
  const Embedding& embedding = embedding_.value();
  if (hooks_ != nullptr && hooks_->joins_vocabulary())
    return hooks_->from_shares(embedding.forward(hooks_->own_rows(tokens)));
  // The rows of other ranks' tokens come by an all-reduce, which does not run: zeros in their place
  // would be data that no layer gets, and that some devices compute on faster. Each token stands
  // for one of the rank's own.
  return embedding.forward(config_.has_vocabulary_share() ? tokens.remainder(config_.vocab_size())
                                                          : tokens);
}

at::Tensor TinyLlama::final_hidden_states(const at::Tensor& tokens) const {
  return run_layers(run_part(0, [&] { return embed(tokens); }));
}

at::Tensor TinyLlama::logits(const at::Tensor& tokens) const {
  const at::Tensor x = final_hidden_states(tokens);
  return run_part(head_part(),
                  [&] { return lm_head_.value().forward(final_norm_.value().forward(x)); });
}

at::Tensor TinyLlama::loss(const at::Tensor& tokens, const at::Tensor& targets) const {
  const at::Tensor x = final_hidden_states(tokens);
  return run_part(head_part(), [&] {
    const at::Tensor normalized = final_norm_.value().forward(x);
    const LmHead& head = lm_head_.value();
    if (hooks_ == nullptr || !hooks_->joins_vocabulary()) return head.loss(normalized, targets);
    return hooks_->loss(head.forward(hooks_->to_shares(normalized)), targets);
  });
}

std::vector<NamedTensors> TinyLlama::parts() const {
  std::vector<NamedTensors> all;
  if (embedding_) all.push_back(embedding_->parameters("model.embed_tokens."));
  for (size_t layer = 0; layer < blocks_.size(); ++layer)
    all.push_back(blocks_[layer].parameters(fmt::format("model.layers.{}.", layer)));
  if (!final_norm_) return all;
  all.push_back(final_norm_->parameters("model.norm."));
  if (!config_.tied_embeddings()) append(all.back(), lm_head_->parameters("lm_head."));
  return all;
}

NamedTensors TinyLlama::parameters() const {
  NamedTensors all;
  for (const NamedTensors& part : parts()) append(all, part);
  return all;
}

Cost layers_cost(const Workload& workload, Pass pass) {
  Cost cost = workload.config.n_layers() * block_cost(workload, pass);
  if (workload.config.only_layers()) {
    // In and out.
    const int64_t bytes =
        workload.tokens() * workload.config.hidden_dim() * storage_bytes(workload.dtype);
    cost += select_halves(pass, 0, {comm_cost(2, bytes), comm_cost(2, bytes)});
  }
  return cost;
}

Cost model_cost(const Workload& workload, Pass pass) {
  Cost body =
      embedding_cost(workload, pass) + layers_cost(workload, pass) + rms_norm_cost(workload, pass);
  if (workload.config.tied_embeddings()) {
    const int64_t table = workload.config.vocab_size() * workload.config.hidden_dim();
    body.parameters -= table;
    // The gradient of one use is added to that of the other.
    if (has_backward(pass)) body += with_traffic({}, table, table * storage_bytes(workload.dtype));
  }
  if (pass != Pass::forward) return body + loss_cost(workload, pass);
  Workload with_logits = workload;
  with_logits.variant = workload.variant.without(Switch::fused_loss);
  Cost head = loss_cost(with_logits, pass);
  head.elementwise_flops = 0;
  head.comm_calls = head.comm_bytes = 0;
  const int64_t T = workload.tokens();
  const int64_t D = workload.config.hidden_dim();
  const int64_t V = workload.config.vocab_size();
  head.bytes =
      (T * D + V * D) * storage_bytes(workload.dtype) + T * V * compute_bytes(workload.dtype);
  return body + head;
}

}  // namespace tinyllama

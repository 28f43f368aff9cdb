// The whole model: embedding, L blocks, final norm, LM head.
#pragma once

#include <vector>

#include "model/block.hpp"
#include "model/cost.hpp"
#include "model/embedding.hpp"
#include "model/loss.hpp"

namespace tinyllama {

class TinyLlama {
 public:
  /// `max_seq`: the longest sequence it will see. Weights are drawn from the initializer in the
  /// order of parameters().
  TinyLlama(const ModelConfig& config, const Variant& variant, int64_t max_seq,
            TensorInitializer& initializer);

  /// tokens [B, S] int64 -> logits [B, S, V].
  at::Tensor logits(const at::Tensor& tokens) const;
  /// tokens, targets [B, S] int64, targets from next_token_targets -> mean loss (a scalar).
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) const;

  /// Every parameter with LlamaForCausalLM's name for it.
  NamedTensors parameters() const;
  const ModelConfig& config() const { return config_; }
  Dtype dtype() const { return dtype_; }

 private:
  /// tokens [B, S] -> what the LM head reads, [B, S, D].
  at::Tensor final_hidden_states(const at::Tensor& tokens) const;

  ModelConfig config_;
  Variant variant_;
  Dtype dtype_;
  int64_t max_seq_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  RmsNorm final_norm_;
  LmHead lm_head_;
  RotaryTable rotary_;
  at::Tensor mask_;  // for sequences of max_seq; undefined where no mask is needed
};

/// forward: up to the logits; forward_loss, backward, forward_backward: with the loss.
Cost model_cost(const Workload& workload, Pass pass);

}  // namespace tinyllama

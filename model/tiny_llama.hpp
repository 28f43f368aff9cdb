// The whole model: embedding, L blocks, final norm, LM head; or, of a pipeline's stage, the blocks.
#pragma once

#include <optional>
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

  /// hidden_states [B, S, D] -> [B, S, D]: the layers alone, all there is of a pipeline's stage.
  at::Tensor run_layers(const at::Tensor& hidden_states) const;

  /// Every parameter with LlamaForCausalLM's name for it; tied embeddings once, as the embedding's.
  NamedTensors parameters() const;
  /// The same in the order in which a forward comes to them: those of the embedding, of each block,
  /// of final norm and LM head.
  std::vector<NamedTensors> parts() const;
  /// Of the forwards from now on; they must outlive the backwards too. Null: none.
  void set_hooks(ModelHooks* hooks) { hooks_ = hooks; }
  const ModelConfig& config() const { return config_; }
  Dtype dtype() const { return dtype_; }

 private:
  /// tokens [B, S] -> what the LM head reads, [B, S, D].
  at::Tensor final_hidden_states(const at::Tensor& tokens) const;
  at::Tensor embed(const at::Tensor& tokens) const;
  /// What `compute` gives of the parameters of this part.
  template <class Compute>
  at::Tensor run_part(size_t part, const Compute& compute) const;
  size_t head_part() const { return blocks_.size() + 1; }

  ModelConfig config_;
  Variant variant_;
  Dtype dtype_;
  int64_t max_seq_;
  // Members but the blocks are absent from a stage.
  std::optional<Embedding> embedding_;
  std::vector<Block> blocks_;
  std::optional<RmsNorm> final_norm_;
  std::optional<LmHead> lm_head_;
  RotaryTable rotary_;
  at::Tensor mask_;  // for sequences of max_seq; undefined where no mask is needed
  ModelHooks* hooks_ = nullptr;
};

/// All layers of the model, or of a stage, between hidden states.
Cost layers_cost(const Workload& workload, Pass pass);

/// forward: up to the logits; forward_loss, backward, forward_backward: with the loss.
Cost model_cost(const Workload& workload, Pass pass);

}  // namespace tinyllama

// Ranks that compute every layer of one batch together, each with its share of the heads, of the
// feed-forward network and of the vocabulary (Shoeybi and others, "Megatron-LM: Training
// Multi-Billion Parameter Language Models Using Model Parallelism", 2019).
#pragma once

#include <cstdint>

#include "model/config.hpp"
#include "model/dtype.hpp"
#include "model/model_hooks.hpp"

namespace tinyllama {

/// The share of one of `ranks` ranks: share.hpp's, with its own padding token. Throws
/// std::invalid_argument that names the dimension, its value, the number of ranks, the rule and
/// what to do where they do not divide heads, KV heads or the feed-forward network, or a feature
/// whose gradients would have to be summed apart.
ModelConfig tensor_share(const ModelConfig& whole, int64_t rank, int64_t ranks);

/// Throws std::invalid_argument for a dtype whose loss scale each rank would choose for itself.
void refuse_tensor_parallel(Dtype dtype);

/// The collectives of a model that is such a share: an all-reduce behind the attention and the
/// feed-forward network of each layer, and one of their inputs' gradients in the backward;
/// one behind the embedding; of each token the largest logit, the sum of exponentials and the
/// target's logit; and the gradient of what the LM head reads. Give it to TinyLlama::set_hooks.
class ShareHooks : public ModelHooks {
 public:
  /// Of all ranks together the vocabulary has `vocab_size` tokens.
  ShareHooks(int64_t rank, int64_t ranks, int64_t vocab_size);

 protected:
  enum class Reduction { sum, largest };

 private:
  /// In place, over the ranks; returns when it is done. Here they are not there, and nothing is.
  virtual void all_reduce(const at::Tensor& /*values*/, Reduction /*reduction*/) {}

  at::Tensor to_shares(const at::Tensor& x) override;
  at::Tensor from_shares(const at::Tensor& x) override;
  bool joins_vocabulary() const override { return true; }
  at::Tensor own_rows(const at::Tensor& tokens) override;
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets) override;

  int64_t share_rows_;  // of the vocabulary, filled up
  int64_t first_row_;
  int64_t own_rows_;
};

}  // namespace tinyllama

// Where ranks that share one model's work come into its forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "model/loss.hpp"

namespace tinyllama {

/// A model that a process has to itself has none of them, and nothing is called. Each does nothing
/// unless it is overridden.
class ModelHooks {
 public:
  ModelHooks() = default;
  virtual ~ModelHooks() = default;
  ModelHooks(const ModelHooks&) = delete;
  ModelHooks& operator=(const ModelHooks&) = delete;

  /// The forward is about to read the parameters of a part, an index into TinyLlama::parts().
  virtual void before_part(size_t /*part*/) {}
  /// It has read them. The part's backward begins when the gradient of `output` is known.
  virtual void after_part(size_t /*part*/, const at::Tensor& /*output*/) {}

  // Of one rank's share of the layers and of the vocabulary (share.hpp):

  /// x [B, S, D], the same on all ranks, which each rank's share of a layer reads -> x. Its
  /// gradient is the sum over the ranks.
  virtual at::Tensor to_shares(const at::Tensor& x) { return x; }
  /// What each rank's share of a layer adds to a sum, [B, S, D], just computed and to be read
  /// nowhere else -> the sum over the ranks, whose gradient goes to every one.
  virtual at::Tensor from_shares(const at::Tensor& x) { return x; }
  /// Whether tokens are those of the whole vocabulary, and the next two are to be called: without
  /// it a share is computed alone, on tokens that it has.
  virtual bool joins_vocabulary() const { return false; }
  /// tokens [B, S] -> rows of the rank's share of the embedding, vocab_size for those of others.
  virtual at::Tensor own_rows(const at::Tensor& tokens) { return tokens; }
  /// The rank's logits [B, S, V / ranks], targets [B, S] -> next_token_loss over all ranks' logits.
  virtual at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets) {
    return next_token_loss(logits, targets);
  }
};

}  // namespace tinyllama

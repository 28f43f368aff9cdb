// Ranks that compute every layer of one batch together, each with its share of the heads, of the
// feed-forward network and of the vocabulary (Shoeybi and others, "Megatron-LM: Training
// Multi-Billion Parameter Language Models Using Model Parallelism", 2019).
#pragma once

#include <cstdint>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"
#include "model/config.hpp"
#include "model/dtype.hpp"
#include "model/model_hooks.hpp"
#include "model/parameters.hpp"

namespace tinyllama::distributed {

/// The share of one of `ranks` ranks: model/share.hpp's, with its own padding token. Throws
/// std::invalid_argument that names the dimension, its value, the number of ranks, the rule and
/// what to do where they do not divide heads, KV heads or the feed-forward network, or a feature
/// whose gradients would have to be summed apart.
ModelConfig tensor_share(const ModelConfig& whole, int rank, int ranks);

/// Throws std::invalid_argument for a dtype whose loss scale each rank would choose for itself.
void refuse_tensor_parallel(Dtype dtype);

/// Copies this rank's share of every parameter of the whole model: of each dimension that is
/// smaller the rank's part. What the vocabulary is filled up with becomes zeros.
void copy_share(const NamedTensors& whole, const NamedTensors& share, int rank);

/// The other way round: tensors with the shapes of `whole`, put together of all ranks' `shares`
/// (parameters or gradients), the same on every rank. All ranks have to call it.
std::vector<at::Tensor> join_shares(ProcessGroup& group, const NamedTensors& whole,
                                    const std::vector<at::Tensor>& shares);

/// The collectives of a model that is such a share: an all-reduce behind the attention and the
/// feed-forward network of each layer, and one of their inputs' gradients in the backward;
/// one behind the embedding; of each token the largest logit, the sum of exponentials and the
/// target's logit; and the gradient of what the LM head reads. Give it to TinyLlama::set_hooks.
class TensorParallel final : public ModelHooks {
 public:
  /// Holds a reference to the group. `whole`: of all ranks together.
  TensorParallel(ProcessGroup& group, const ModelConfig& whole);

  /// Until it is set again nothing is sent: each rank then computes its share alone, with wrong
  /// results, as long as a step takes without communication.
  void set_connected(bool connected) { is_connected_ = connected; }

  /// From now on the all-reduces are counted anew.
  void begin() { sent_.clear(); }
  int64_t calls() const { return static_cast<int64_t>(sent_.size()); }
  int64_t bytes() const;
  /// The all-reduces since begin() once more, without computing: what they cost alone.
  void communicate();

 private:
  at::Tensor to_shares(const at::Tensor& x) override;
  at::Tensor from_shares(const at::Tensor& x) override;
  bool joins_vocabulary() const override { return true; }
  at::Tensor own_rows(const at::Tensor& tokens) override;
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets) override;

  enum class Reduction { sum, largest };
  /// In place.
  void all_reduce(const at::Tensor& values, Reduction reduction);

  struct Message {
    int64_t elements;
    at::TensorOptions kind;
    Reduction reduction;
  };

  ProcessGroup& group_;
  int64_t share_rows_;  // of the vocabulary, filled up
  int64_t first_row_;
  int64_t own_rows_;
  bool is_connected_ = true;
  std::vector<Message> sent_;
};

}  // namespace tinyllama::distributed

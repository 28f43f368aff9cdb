// Token embedding: a row of the table for each token.
#pragma once

#include "model/config.hpp"
#include "model/cost.hpp"
#include "model/parameters.hpp"

namespace tinyllama {

class Embedding {
 public:
  Embedding(const ModelConfig& config, TensorInitializer& initializer);

  /// tokens [B, S] int64 -> [B, S, D]; of one rank's share of the vocabulary zeros for the tokens
  /// of other ranks, which an all-reduce fills in.
  at::Tensor forward(const at::Tensor& tokens) const;
  const at::Tensor& weight() const { return weight_; }
  NamedTensors parameters(const std::string& prefix) const;

 private:
  at::Tensor weight_;  // [V, D]
  bool is_share_;
  int64_t padding_token_;  // whose row gets no gradient; -1: none
};

/// A look-up: no matrix multiplication.
Cost embedding_cost(const Workload& workload, Pass pass);

}  // namespace tinyllama

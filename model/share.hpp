// One rank's share of a model that several ranks compute together, as a model of its own: the
// component study of a model that no single device holds.
#pragma once

#include <string>

#include "model/config.hpp"

namespace tinyllama {

/// Among how many ranks a model is divided.
struct Parallelism {
  int64_t tensor = 1;    ///< heads, feed-forward network and vocabulary
  int64_t pipeline = 1;  ///< layers

  bool divides() const { return tensor > 1 || pipeline > 1; }
  auto operator<=>(const Parallelism&) const = default;
};

/// The share of the first rank. Tensor parallelism as Megatron-LM has it (Shoeybi et al.,
/// "Megatron-LM", 2019): query heads, KV heads, the feed-forward network's intermediate elements
/// and the vocabulary are divided, each KV head is on several ranks where there are more ranks than
/// KV heads, norms and the biases behind an all-reduce are on every rank; norms and residuals are
/// computed by every rank in full (no sequence parallelism). The vocabulary's shares are rounded
/// up. Pipeline parallelism: the layers of the largest stage, without embedding, final norm and LM
/// head, which the first and the last stage have beside theirs. Throws std::invalid_argument that
/// names the dimension, the number of ranks and the rule where they do not divide.
ModelConfig share_of(const ModelConfig& whole, const Parallelism& ranks);

/// Behind the name of a size: "-tp8-pp4"; empty for the whole model.
std::string share_suffix(const Parallelism& ranks);

}  // namespace tinyllama

// What a tensor is, told by the place where it was allocated and by its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/training/phase.hpp"
#include "model/cost.hpp"

namespace tinyllama::training {

/// Where a tensor was allocated.
struct TensorOrigin {
  std::string_view component;
  std::string_view operation;
  Phase phase = Phase::other;
};

/// Names the tensors of one model at one batch and sequence length. Letters as in the model: B, S,
/// D (hidden), D_ff (intermediate), H (heads), KV (KV heads), V (vocabulary).
class TensorNames {
 public:
  /// `on_gpu`: allocations there are larger than what was asked for, by rounding and by remainders
  /// too small to be split off.
  TensorNames(const Workload& workload, bool on_gpu);

  /// "attention_scores [B,H,S,S]", "gradient of logits [B,S,V]", ...; "<component>: <operator>"
  /// where no tensor of the component has as many bytes.
  std::string name(const TensorOrigin& origin, int64_t bytes) const;
  /// Whether it is a matrix of attention scores or of their softmax, in its narrow or wide type.
  bool is_score_matrix(const TensorOrigin& origin, int64_t bytes) const;

 private:
  enum class Direction { any, forward, backward };
  struct Entry {
    std::string_view component;
    int64_t bytes;
    std::string_view name;
    std::string_view operation = {};  ///< where tensors of the same size come from several
    Direction direction = Direction::any;
  };
  void add_layers();
  void add_attention();
  void add_loss();
  void add_weights();
  bool matches(int64_t bytes, int64_t expected) const;
  const Entry* find(const TensorOrigin& origin, int64_t bytes) const;

  Workload workload_;
  bool on_gpu_;
  std::vector<Entry> entries_;
};

}  // namespace tinyllama::training

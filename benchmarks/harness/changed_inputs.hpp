// New inputs for a case, written over the old ones in place: results that an implementation kept
// from earlier iterations are then wrong.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/parameters.hpp"

namespace tinyllama::harness {

/// Tokens [B, S] and their next-token targets [B, S], int64; either may be undefined.
struct TokenInputs {
  at::Tensor tokens;
  at::Tensor targets;
  int64_t vocab_size = 0;
};

/// How many samples of the changed inputs differ. The batch is made of copies of them, so that a
/// reference of that many samples gives the results of any batch.
int64_t distinct_samples(int64_t batch);

/// Overwrites inputs by values that depend on the seed and the number of distinct samples alone,
/// not on dtype, variant or batch. Autograd does not see it.
class ChangedInputs {
 public:
  ChangedInputs(uint64_t seed, int64_t distinct, Dtype dtype, c10::Device device);

  /// [B, ...] from N(0, 1).
  void fill(const at::Tensor& samples);
  /// The same, but with a large first value in each sample, so that clamping or overflow shows.
  void fill_with_large(const at::Tensor& samples);
  /// Uniformly drawn tokens and their targets. Where `tokens` is undefined, the targets of tokens
  /// that are drawn and dropped.
  void fill(const TokenInputs& inputs);

 private:
  void repeat(const at::Tensor& samples, const at::Tensor& drawn) const;
  at::Tensor draw(const at::Tensor& samples);

  TensorInitializer initializer_;
  int64_t distinct_;
};

/// Multiplies the elements in turn by 1/2, 1 and 2, which is exact in every type. For weights that
/// are all 1, as a norm's are: reversing would not change them.
void scale_by_turns(const at::Tensor& vector);

/// Reverses every dimension, and scales vectors as above: new values for weights, also for those
/// that were read from a file.
void reverse_in_place(const NamedTensors& tensors);

}  // namespace tinyllama::harness

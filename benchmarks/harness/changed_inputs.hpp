// What a case computes with, exchanged where it lies: new inputs at the old addresses, so that
// nothing that was kept from earlier iterations is right any more.
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

/// Samples of the changed inputs that differ: the batch is copies of them, so that the results of
/// any batch follow from a reference of that many samples.
int64_t distinct_samples(int64_t batch);

/// Overwrites inputs by values that depend on the seed and the number of distinct samples alone,
/// not on dtype, variant or batch. Autograd does not see it.
class ChangedInputs {
 public:
  ChangedInputs(uint64_t seed, int64_t distinct, Dtype dtype, c10::Device device);

  /// [B, ...] from N(0, 1).
  void fill(const at::Tensor& samples);
  /// The same with one large value a sample, the first: whoever clamps or overflows shows there.
  void fill_with_large(const at::Tensor& samples);
  /// Uniform tokens; targets alone are those of tokens that nobody sees.
  void fill(const TokenInputs& inputs);

 private:
  void repeat(const at::Tensor& samples, const at::Tensor& drawn) const;
  at::Tensor draw(const at::Tensor& samples);

  TensorInitializer initializer_;
  int64_t distinct_;
};

/// Multiplies elements by 1/2, 1 and 2 by turns, which every type holds exactly: weights that are
/// all 1, as those of norms, would be the same in reverse.
void scale_by_turns(const at::Tensor& vector);

/// Reverses every dimension, and scales vectors by turns: other values of weights that were read
/// too.
void reverse_in_place(const NamedTensors& tensors);

}  // namespace tinyllama::harness

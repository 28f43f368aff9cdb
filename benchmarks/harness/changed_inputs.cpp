#include "benchmarks/harness/changed_inputs.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp2.h>
#include <c10/core/GradMode.h>

#include <numeric>
#include <vector>

#include "model/loss.hpp"

namespace tinyllama::harness {
namespace {

// Exact in every dtype. As the first feature of a sample's first token among hundreds it moves
// scores of attention by about as much as the others together.
constexpr double kLarge = 32;

}  // namespace

int64_t distinct_samples(int64_t batch) {
  return batch % 2 == 0 ? 2 : 1;
}

ChangedInputs::ChangedInputs(uint64_t seed, int64_t distinct, Dtype dtype, c10::Device device)
    : initializer_(seed, dtype, device), distinct_(distinct) {}

at::Tensor ChangedInputs::draw(const at::Tensor& samples) {
  std::vector<int64_t> shape = samples.sizes().vec();
  if (!shape.empty()) shape[0] = std::gcd(shape[0], distinct_);
  return initializer_.normal(shape);
}

void ChangedInputs::repeat(const at::Tensor& samples, const at::Tensor& drawn) const {
  const at::NoGradGuard no_grad;
  samples.detach().view({-1, drawn.numel()}).copy_(drawn.view({1, -1}));
}

void ChangedInputs::fill(const at::Tensor& samples) {
  repeat(samples, draw(samples));
}

void ChangedInputs::fill_with_large(const at::Tensor& samples) {
  const at::Tensor drawn = draw(samples);
  if (drawn.dim() > 1) drawn.flatten(1).select(1, 0).mul_(kLarge);
  repeat(samples, drawn);
}

void ChangedInputs::fill(const TokenInputs& inputs) {
  const at::Tensor& like = inputs.tokens.defined() ? inputs.tokens : inputs.targets;
  if (!like.defined()) return;
  const at::Tensor drawn = initializer_.tokens({distinct_, like.size(1)}, inputs.vocab_size);
  if (inputs.tokens.defined()) repeat(inputs.tokens, drawn);
  if (inputs.targets.defined()) repeat(inputs.targets, next_token_targets(drawn));
}

void scale_by_turns(const at::Tensor& vector) {
  const at::NoGradGuard no_grad;
  // counted in float64: bfloat16 has no odd number above 256
  const at::Tensor places = at::arange(vector.numel(), vector.options().dtype(at::kDouble));
  vector.detach().mul_(at::exp2(places.remainder(3) - 1));
}

void reverse_in_place(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    std::vector<int64_t> dims(static_cast<size_t>(tensor.dim()));
    std::iota(dims.begin(), dims.end(), int64_t{0});
    tensor.detach().copy_(tensor.detach().flip(dims));
    if (tensor.dim() == 1) scale_by_turns(tensor);
  }
}

}  // namespace tinyllama::harness

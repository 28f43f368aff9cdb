// A small model on every rank, for tests of data-parallel steps.
#pragma once

#include <memory>
#include <vector>

#include "model/relative_error.hpp"
#include "model/testing.hpp"
#include "model/train_step.hpp"

namespace tinyllama::distributed::testing {

inline constexpr int64_t kSeq = 5;
inline constexpr int64_t kSamplesOfARank = 2;

/// The same on every rank: weights, and a batch of the samples of all ranks.
struct SmallTraining {
  explicit SmallTraining(int ranks, const Variant& variant = {})
      : initializer(7, Dtype::f32, c10::Device(c10::DeviceType::CPU)),
        model(tinyllama::testing::small_config(), variant, kSeq, initializer),
        parameters(model.parameters()),
        optimizer(parameters, variant, {.learning_rate = 1e-2}),
        step(model, optimizer),
        all(random_token_batch(model.config(), kSamplesOfARank * ranks, kSeq, initializer)) {
    // Beyond the first step, in which an update is the sign of its gradient.
    for (const auto& [name, moment] : optimizer.second_moments()) moment.fill_(0x1p-12);
  }

  TokenBatch samples_of(int rank) const {
    return {all.tokens.narrow(0, kSamplesOfARank * rank, kSamplesOfARank),
            all.targets.narrow(0, kSamplesOfARank * rank, kSamplesOfARank)};
  }

  TensorInitializer initializer;
  TinyLlama model;
  NamedTensors parameters;
  AdamW optimizer;
  TrainStep step;
  TokenBatch all;
};

/// Largest difference between tensors of two lists, each over the largest magnitude of its expected
/// tensor.
inline double largest_difference(const std::vector<at::Tensor>& actual,
                                 const std::vector<at::Tensor>& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest =
        std::max(largest, largest_error(to_values(actual.at(i)), to_values(expected[i])).relative);
  }
  return largest;
}

inline std::vector<at::Tensor> copies(const NamedTensors& named) {
  std::vector<at::Tensor> found;
  for (const auto& [name, tensor] : named) found.push_back(tensor.detach().clone());
  return found;
}

inline std::vector<at::Tensor> gradient_copies(const NamedTensors& named) {
  std::vector<at::Tensor> found;
  for (const auto& [name, tensor] : named) found.push_back(tensor.grad().clone());
  return found;
}

}  // namespace tinyllama::distributed::testing

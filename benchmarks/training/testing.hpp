// Helpers of the tests in this folder.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/training/model_state.hpp"
#include "benchmarks/training/token_data.hpp"
#include "benchmarks/training/train_options.hpp"

namespace tinyllama::training::testing {

// The allocator that counts must be there before the first tensor.
class AllocatorEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { instruments::host_allocator::install(); }
};
inline ::testing::Environment* const kAllocatorEnvironment =
    ::testing::AddGlobalTestEnvironment(new AllocatorEnvironment);

/// A model that takes a millisecond a step, with the operator profiler on in steps 5 and 6 of 7.
inline TrainOptions small_options() {
  TrainOptions options;
  options.dimensions = {.vocab_size = 50,
                        .hidden_dim = 32,
                        .n_layers = 2,
                        .n_heads = 4,
                        .n_kv_heads = 2,
                        .intermediate_dim = 48};
  options.batch_size = 2;
  options.seq_len = 8;
  options.num_steps = 7;
  options.profile_pytorch = true;
  options.profile_steps = 1;
  options.profile_operators = true;
  options.profile_stacks = true;
  return options;
}

/// What a Trainer needs, on the CPU with synthetic tokens.
struct TrainingParts {
  explicit TrainingParts(const TrainOptions& options)
      : state(options, device.torch()),
        data(synthetic_data(ModelConfig(options.dimensions),
                            {options.batch_size, options.seq_len, options.seed, device.torch()})) {}

  instruments::Device device = instruments::Device::select("cpu");
  ModelState state;
  std::unique_ptr<TokenData> data;
};

}  // namespace tinyllama::training::testing

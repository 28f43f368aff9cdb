#include "benchmarks/distributed/tensor_parallel.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/distributed/testing.hpp"
#include "model/train_step.hpp"

namespace tinyllama::distributed {
namespace {

using testing::gradient_copies;
using testing::kAllowed;
using testing::kAllowedWeights;
using testing::kSteps;
using testing::largest_difference;
using testing::live_bytes;
using testing::run_ranks;

constexpr int64_t kBatch = 3, kSeq = 5;

// Divided by 2 and 4, but for the vocabulary, whose last share is filled up.
ModelDimensions dimensions() {
  return {.vocab_size = 22,
          .hidden_dim = 16,
          .n_layers = 2,
          .n_heads = 8,
          .n_kv_heads = 4,
          .intermediate_dim = 12,
          .padding_token = 17};
}

struct Training {
  Training(const ModelConfig& config, const Variant& variant)
      : initializer(7, Dtype::f32, c10::Device(c10::DeviceType::CPU)),
        model(config, variant, kSeq, initializer),
        parameters(model.parameters()),
        optimizer(parameters, variant, {.learning_rate = 1e-2}),
        step(model, optimizer) {
    // Beyond the first step, in which an update is the sign of its gradient.
    for (const auto& [name, moment] : optimizer.second_moments()) moment.fill_(0x1p-12);
  }
  TensorInitializer initializer;
  TinyLlama model;
  NamedTensors parameters;
  AdamW optimizer;
  TrainStep step;
};

TokenBatch batch_of(const ModelConfig& config) {
  TensorInitializer initializer(8, Dtype::f32, c10::Device(c10::DeviceType::CPU));
  return random_token_batch(config, kBatch, kSeq, initializer);
}

std::vector<at::Tensor> values_of(const NamedTensors& named) {
  std::vector<at::Tensor> found;
  for (const auto& [name, tensor] : named) found.push_back(tensor.detach());
  return found;
}

// One process with the whole model.
struct Expected {
  Expected(const ModelConfig& config, const Variant& variant)
      : initial(config, variant), trained(config, variant), batch(batch_of(config)) {
    for (int step = 0; step < kSteps; ++step) {
      trained.optimizer.clear_gradients();
      losses.push_back(trained.step.run({&batch, 1}).item<double>());
      if (step == 0) gradients = gradient_copies(trained.parameters);
    }
  }
  Training initial;
  Training trained;
  TokenBatch batch;
  std::vector<double> losses;
  std::vector<at::Tensor> gradients;  // of the first step
};

void expect_the_same(ProcessGroup& group, const ModelConfig& config, const Variant& variant,
                     const Expected& expected) {
  Training mine(tensor_share(config, group.rank(), group.size()), variant);
  copy_share(expected.initial.parameters, mine.parameters, group.rank());
  TensorParallel ranks(group, config);
  mine.model.set_hooks(&ranks);
  for (int step = 0; step < kSteps; ++step) {
    mine.optimizer.clear_gradients();
    const at::Tensor loss = mine.step.run({&expected.batch, 1});
    EXPECT_NEAR(loss.item<double>(), expected.losses.at(step), kAllowedWeights);
    if (step > 0) continue;
    EXPECT_LE(largest_difference(
                  join_shares(group, expected.trained.parameters, gradient_copies(mine.parameters)),
                  expected.gradients),
              kAllowed);
  }
  EXPECT_LE(largest_difference(
                join_shares(group, expected.trained.parameters, values_of(mine.parameters)),
                values_of(expected.trained.parameters)),
            kAllowedWeights);
  NamedTensors on_every_rank;
  for (const auto& named : mine.parameters) {
    if (named.first.find("norm") != std::string::npos) on_every_rank.push_back(named);
  }
  EXPECT_EQ(group.differing_ranks("norms", on_every_rank), "");
}

TEST(TensorParallelTest, LossesGradientsAndWeightsAreThoseOfOneProcess) {
  ModelDimensions tied = dimensions();
  tied.tied_embeddings = tied.qkv_bias = true;
  tied.sliding_window = 3;
  const std::pair<ModelDimensions, Variant> cases[] = {
      {dimensions(), {}},
      {tied, {}},
      {dimensions(), Variant({Switch::checkpoint})},
      {dimensions(), Variant({Switch::qkv, Switch::gate_up, Switch::sdpa, Switch::fused_norm,
                              Switch::fused_swiglu})}};
  for (const auto& [whole, variant] : cases) {
    const ModelConfig config(whole);
    const Expected expected(config, variant);
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(
          fmt::format("{} ranks, tied {}, {}", ranks, whole.tied_embeddings, variant.name()));
      run_ranks(ranks,
                [&](ProcessGroup& group) { expect_the_same(group, config, variant, expected); });
    }
  }
}

// What the cost functions have said of a share before anything was sent.
TEST(TensorParallelTest, WhatIsSentIsWhatTheCostsOfAShareSay) {
  const ModelConfig config((dimensions()));
  const std::pair<int, Variant> cases[] = {{2, {}}, {4, {}}, {2, Variant({Switch::checkpoint})}};
  for (const auto& [ranks, variant] : cases) {
    run_ranks(ranks, [&, form = variant](ProcessGroup& group) {
      const ModelConfig share = tensor_share(config, group.rank(), group.size());
      Training mine(share, form);
      TensorParallel hooks(group, config);
      mine.model.set_hooks(&hooks);
      const TokenBatch batch = batch_of(config);
      hooks.begin();
      mine.step.run({&batch, 1});
      const Cost cost = full_step_cost({share, form, Dtype::f32, kBatch, kSeq});
      EXPECT_EQ(hooks.calls(), cost.comm_calls);
      EXPECT_EQ(hooks.bytes(), cost.comm_bytes);
      hooks.communicate();
      hooks.set_connected(false);
      hooks.begin();
      mine.optimizer.clear_gradients();
      mine.step.run({&batch, 1});
      EXPECT_EQ(hooks.calls(), 0);
    });
  }
}

TEST(TensorParallelTest, ARankHoldsTheParametersOfItsShare) {
  const ModelConfig config((dimensions()));
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      const ModelConfig share = tensor_share(config, group.rank(), group.size());
      const int64_t before = live_bytes(group);
      Training mine(share, {});
      TensorParallel hooks(group, config);
      mine.model.set_hooks(&hooks);
      const int64_t built = live_bytes(group);
      const TokenBatch batch = batch_of(config);
      const int64_t with_batch = live_bytes(group);
      mine.step.run({&batch, 1});
      const int64_t bytes = count_parameters(share) * 4;
      const int64_t with_gradients = with_batch + bytes * group.size();
      const int64_t trained = live_bytes(group, with_gradients);
      EXPECT_EQ(trained, with_gradients);
      // Tables of the rotary embedding and the mask, which are no parameters.
      const RotaryTable rotary(share, {}, kSeq, Dtype::f32, c10::Device(c10::DeviceType::CPU));
      const at::Tensor mask =
          attention_mask(share, {}, kSeq, Dtype::f32, c10::Device(c10::DeviceType::CPU));
      const int64_t tables = live_bytes(group) - trained;
      EXPECT_EQ(built - before - tables, 3 * bytes * group.size()) << "parameters and moments";
      const int64_t fill = share.vocab_size() * group.size() - config.vocab_size();
      const int64_t whole = count_parameters(config) * 4;
      EXPECT_LE(bytes, whole / group.size() + 4 * (2 * fill * 16 + 5 * 16));
    });
  }
}

TEST(TensorParallelTest, WhatDoesNotDivideIsNamed) {
  const auto refusal = [](ModelDimensions changed, int ranks) {
    return ::tinyllama::testing::error_of<std::invalid_argument>(
        [&] { tensor_share(ModelConfig(changed), 0, ranks); });
  };
  ModelDimensions changed = dimensions();
  EXPECT_EQ(refusal(changed, 3),
            "n_heads 8 over 3 ranks (tensor): must be a multiple of the ranks; start as many as "
            "divide it, or take another model");
  EXPECT_CONTAINS(refusal(changed, 8), "n_kv_heads 4 over 8 ranks");
  changed.intermediate_dim = 15;
  EXPECT_CONTAINS(refusal(changed, 2), "intermediate_dim 15 over 2 ranks");
  changed = dimensions();
  changed.qk_norm = true;
  EXPECT_CONTAINS(refusal(changed, 2), "qk_norm over 2 ranks");
  changed = dimensions();
  changed.vocab_size = 5;
  changed.padding_token.reset();
  EXPECT_CONTAINS(refusal(changed, 4), "vocab_size 5 over 4 ranks");
  EXPECT_THROW(refuse_tensor_parallel(Dtype::amp_f16), std::invalid_argument);
}

}  // namespace
}  // namespace tinyllama::distributed

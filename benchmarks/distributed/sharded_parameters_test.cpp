#include "benchmarks/distributed/sharded_parameters.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/distributed/data_parallel_options.hpp"
#include "benchmarks/distributed/testing.hpp"
#include "benchmarks/instruments/host_allocator.hpp"

namespace tinyllama::distributed {
namespace {

using instruments::host_allocator::read;
using testing::copies;
using testing::gradient_copies;
using testing::kAllowed;
using testing::kAllowedWeights;
using testing::kSteps;
using testing::largest_difference;
using testing::live_bytes;
using testing::run_ranks;
using testing::SmallTraining;

constexpr AdamWOptions kOptions = {.learning_rate = 1e-2};

// One process with the samples of all ranks, in `micro` backwards.
struct Expected {
  Expected(int ranks, const Variant& variant) : training(ranks, variant) {
    for (int step = 0; step < kSteps; ++step) {
      training.optimizer.clear_gradients();
      losses.push_back(training.step.run({&training.all, 1}).item<double>());
      if (step == 0) gradients = gradient_copies(training.parameters);
    }
  }
  SmallTraining training;
  std::vector<double> losses;
  std::vector<at::Tensor> gradients;  // of the first step
};

double backward(ProcessGroup& group, SmallTraining& training, ShardedParameters& sharded) {
  const at::Tensor loss = training.step.forward(training.samples_of(group.rank()), group.size());
  sharded.backward([&] { training.step.backward(loss); });
  at::Tensor sum = loss.detach().clone();
  group.all_reduce(sum).wait();
  return sum.item<double>();
}

void fill_second_moments(ShardedParameters& sharded) {
  for (const auto& [name, moment] : sharded.of_shares().second_moments()) moment.fill_(0x1p-12);
}

struct Setting {
  int ranks;
  bool overlap;
  Variant variant = {};
};

TEST(ShardedParametersTest, LossesGradientsAndWeightsAreThoseOfOneProcessWithAllSamples) {
  const Setting settings[] = {
      {1, true},
      {2, true},
      {2, false},
      {3, true},
      {4, true},
      {4, false},
      {2, true, Variant({Switch::checkpoint})},
      {4, true, Variant({Switch::qkv, Switch::gate_up, Switch::tiled_gemm})},
      {2, true, Variant({Switch::layout})},
      {2, true, Variant({Switch::fused_norm, Switch::fused_loss})}};
  for (const Setting& setting : settings) {
    SCOPED_TRACE(fmt::format("{} ranks, overlap {}, {}", setting.ranks, setting.overlap,
                             setting.variant.name()));
    const Expected expected(setting.ranks, setting.variant);
    run_ranks(setting.ranks, [&](ProcessGroup& group) {
      SmallTraining training(group.size(), setting.variant);
      ShardedParameters sharded(group, training.model, setting.variant, kOptions, setting.overlap);
      fill_second_moments(sharded);
      for (int step = 0; step < kSteps; ++step) {
        sharded.clear_gradients();
        EXPECT_NEAR(backward(group, training, sharded), expected.losses.at(step), kAllowedWeights);
        if (step == 0) {
          sharded.gather_gradients();
          EXPECT_LE(largest_difference(gradient_copies(training.parameters), expected.gradients),
                    kAllowed);
        }
        sharded.step();
      }
      sharded.gather_parameters();
      EXPECT_LE(
          largest_difference(copies(training.parameters), copies(expected.training.parameters)),
          kAllowedWeights);
      EXPECT_EQ(group.differing_ranks("weights", training.parameters), "");
    });
  }
}

TEST(ShardedParametersTest, GradientsOfMicroBatchesAddUp) {
  const Expected expected(2, {});
  run_ranks(2, [&](ProcessGroup& group) {
    SmallTraining training(group.size());
    ShardedParameters sharded(group, training.model, {}, kOptions, true);
    const TokenBatch mine = training.samples_of(group.rank());
    for (int64_t sample = 0; sample < testing::kSamplesOfARank; ++sample) {
      const TokenBatch one = {mine.tokens.narrow(0, sample, 1), mine.targets.narrow(0, sample, 1)};
      const at::Tensor loss = training.step.forward(one, testing::kSamplesOfARank * group.size());
      sharded.backward([&] { training.step.backward(loss); });
    }
    sharded.gather_gradients();
    EXPECT_LE(largest_difference(gradient_copies(training.parameters), expected.gradients),
              kAllowed);
  });
}

TEST(ShardedParametersTest, WithoutABackwardEveryPartIsFreedAndTheLossIsTheSame) {
  SmallTraining one(2);
  const auto expected = one.step.forward(one.all).item<double>();
  run_ranks(2, [&](ProcessGroup& group) {
    SmallTraining training(group.size());
    ShardedParameters sharded(group, training.model, {}, kOptions, true);
    const at::NoGradGuard no_grad;
    EXPECT_EQ(training.step.forward(training.all).item<double>(), expected);
    for (const auto& [name, parameter] : training.parameters)
      EXPECT_EQ(parameter.storage().nbytes(), 0U) << name;
  });
}

TEST(ShardedParametersTest, AGradientThatIsMissingIsAnError) {
  run_ranks(1, [&](ProcessGroup& group) {
    SmallTraining training(1);
    ShardedParameters sharded(group, training.model, {}, kOptions, true);
    EXPECT_CONTAINS(
        ::tinyllama::testing::error_of<std::logic_error>([&] { sharded.backward([] {}); }),
        "of the part that begins with model.embed_tokens.weight are missing");
  });
}

TEST(ShardedParametersTest, WhatCannotBeIsNamed) {
  const auto refusal = [](const ModelDimensions& dimensions, Dtype dtype) {
    return ::tinyllama::testing::error_of<std::invalid_argument>(
        [&] { refuse_sharded_parameters(ModelConfig(dimensions), dtype); });
  };
  EXPECT_CONTAINS(refusal({.tied_embeddings = true}, Dtype::f32), "tied embeddings");
  EXPECT_CONTAINS(refusal({}, Dtype::amp_bf16), "dtype amp_bf16");
}

TEST(ShardedParametersTest, ARankHoldsWhatIsPredictedOfIt) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      SmallTraining training(group.size());
      const std::vector<NamedTensors> parts = training.model.parts();
      int64_t weights = 0;
      for (const auto& [name, parameter] : training.parameters)
        weights += static_cast<int64_t>(parameter.nbytes());
      const ShardedBytes predicted = sharded_bytes(parts, group.size());
      const int64_t whole = live_bytes(group);
      ShardedParameters sharded(group, training.model, {}, kOptions, true);
      const int64_t ranks_here = group.size();
      // Parameters became shares of themselves and of two moments.
      const int64_t cut = whole + ranks_here * (3 * predicted.share - weights);
      EXPECT_EQ(live_bytes(group, cut), cut);
      backward(group, training, sharded);
      EXPECT_EQ(sharded.sent_bytes(), predicted.sent);
      const int64_t with_gradients = cut + ranks_here * predicted.share;
      EXPECT_EQ(live_bytes(group, with_gradients), with_gradients);
      sharded.step();
      sharded.clear_gradients();
      EXPECT_EQ(live_bytes(group, cut), cut);
      sharded.communicate();
      EXPECT_EQ(sharded.sent_bytes(), 2 * predicted.sent) << "alone as much as in a step";
      // 64 bytes a parameter, and 64 a part and rank, at most.
      const auto padding =
          static_cast<int64_t>(64 * (training.parameters.size() / group.size() + parts.size() + 1));
      EXPECT_LE(predicted.held(), 4 * weights / group.size() + 4 * padding);
    });
  }
}

// A model whose activations are small beside its parameters.
ModelConfig large_config() {
  return ModelConfig({.vocab_size = 64,
                      .hidden_dim = 64,
                      .n_layers = 16,
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .intermediate_dim = 256});
}

TEST(ShardedParametersTest, RanksTogetherNeedNoMoreThanIsPredicted) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      DataParallelOptions options;
      options.dimensions = large_config().dimensions();
      options.batch = 1;
      options.seq = 2;
      options.share = Share::zero3;
      const int64_t predicted = predict_rank_bytes(options, ranks, c10::DeviceType::CPU);
      const int64_t before = live_bytes(group);
      TensorInitializer initializer(7, Dtype::f32, c10::Device(c10::DeviceType::CPU));
      TinyLlama model(large_config(), {}, options.seq, initializer);
      ShardedParameters sharded(group, model, {}, kOptions, true);
      AdamW none({}, {});
      const TrainStep step(model, none);
      const TokenBatch batch =
          random_token_batch(model.config(), options.batch, options.seq, initializer);
      live_bytes(group);
      if (group.is_first()) instruments::host_allocator::reset_peak();
      group.barrier();
      const at::Tensor loss = step.forward(batch);
      sharded.backward([&] { step.backward(loss); });
      sharded.step();
      group.barrier();
      EXPECT_LE(read().peak_bytes - before, group.size() * predicted);
      EXPECT_GE(read().peak_bytes - before, group.size() * predicted / 2) << "of any use";
    });
  }
}

TEST(ShardedParametersTest, PartsAreWholeOnlyWhileTheyCompute) {
  const ModelConfig config = large_config();
  run_ranks(1, [&](ProcessGroup& group) {
    constexpr int64_t kShortest = 2;
    TensorInitializer initializer(7, Dtype::f32, c10::Device(c10::DeviceType::CPU));
    TinyLlama model(config, {}, kShortest, initializer);
    AdamW none({}, {});
    const TrainStep step(model, none);
    const TokenBatch batch = random_token_batch(config, 1, kShortest, initializer);
    const auto peak_of = [&](const std::function<void()>& run) {
      const int64_t before = read().live_bytes;
      instruments::host_allocator::reset_peak();
      run();
      return read().peak_bytes - before;
    };
    const int64_t activations = peak_of([&] { static_cast<void>(step.forward(batch)); });
    const ShardedBytes predicted = sharded_bytes(model.parts(), 1);
    // Far below all parameters at once.
    ASSERT_LT(predicted.in_flight + 2 * activations, predicted.share / 2);
    ShardedParameters sharded(group, model, {}, kOptions, true);
    at::Tensor loss;
    const int64_t forward = peak_of([&] { loss = step.forward(batch); });
    EXPECT_LE(forward, predicted.in_flight + activations);
    const int64_t backward_peak = peak_of([&] { sharded.backward([&] { step.backward(loss); }); });
    // With gradients, which stay.
    EXPECT_LE(backward_peak, predicted.share + predicted.in_flight + activations);
  });
}

}  // namespace
}  // namespace tinyllama::distributed

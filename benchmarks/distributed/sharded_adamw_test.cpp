#include "benchmarks/distributed/sharded_adamw.hpp"

#include <gtest/gtest.h>

#include "benchmarks/distributed/testing.hpp"

namespace tinyllama::distributed {
namespace {

using testing::copies;
using testing::largest_difference;
using testing::run_ranks;
using testing::SmallTraining;

constexpr int kSteps = 3;
constexpr AdamWOptions kOptions = {.learning_rate = 1e-2};

void train_alone(SmallTraining& training) {
  for (int step = 0; step < kSteps; ++step) {
    training.optimizer.clear_gradients();
    training.step.run({&training.all, 1});
  }
}

// The same steps, of the second moments that SmallTraining begins with.
void train(ProcessGroup& group, SmallTraining& training, ShardedAdamW& sharded) {
  for (const auto& [name, moment] : sharded.of_shares().second_moments()) moment.fill_(0x1p-12);
  sharded.attach();
  for (int step = 0; step < kSteps; ++step) {
    sharded.clear_gradients();
    const at::Tensor loss = training.step.forward(training.samples_of(group.rank()), group.size());
    sharded.begin();
    training.step.backward(loss);
    sharded.finish();
    sharded.step();
  }
}

// Layers whose matrix multiplications are merged hold views of their weights.
TEST(ShardedAdamWTest, TheForwardSeesWhatWasGathered) {
  const Variant variant({Switch::qkv, Switch::gate_up, Switch::onednn});
  SmallTraining one(2, variant);
  train_alone(one);
  const auto expected = one.step.forward(one.all).item<double>();
  run_ranks(2, [&](ProcessGroup& group) {
    SmallTraining training(group.size(), variant);
    ShardedAdamW sharded(group, training.parameters, variant, kOptions, {});
    train(group, training, sharded);
    EXPECT_NEAR(training.step.forward(training.all).item<double>(), expected, 1e-5);
  });
}

TEST(ShardedAdamWTest, WeightsAreThoseOfOneProcessWithAWholeOptimizer) {
  const std::pair<int, Switch> cases[] = {{1, Switch::foreach_adamw},
                                          {2, Switch::foreach_adamw},
                                          {3, Switch::fused_adamw},
                                          {4, Switch::foreach_adamw}};
  for (const auto& [ranks, form] : cases) {
    SmallTraining one(ranks);
    train_alone(one);
    run_ranks(ranks, [&, variant = Variant({form})](ProcessGroup& group) {
      SmallTraining training(group.size());
      ShardedAdamW sharded(group, training.parameters, variant, kOptions, {.bucket_bytes = 600});
      train(group, training, sharded);
      EXPECT_LE(largest_difference(copies(training.parameters), copies(one.parameters)), 1e-5);
      EXPECT_EQ(group.differing_ranks("weights", training.parameters), "");
    });
  }
}

TEST(ShardedAdamWTest, ARankKeepsItsShareOfTheMomentsOnly) {
  int64_t whole = 0;
  for (const auto& [name, parameter] : SmallTraining(1).parameters) whole += 2 * parameter.numel();
  run_ranks(3, [&](ProcessGroup& group) {
    SmallTraining training(group.size());
    const ShardedAdamW sharded(group, training.parameters, {}, kOptions, {});
    EXPECT_GE(3 * sharded.moment_elements(), whole);
    // Rounded up to equal shares, at most two elements of each moment.
    EXPECT_LE(3 * sharded.moment_elements(), whole + 2 * 3 * 2);
  });
}

}  // namespace
}  // namespace tinyllama::distributed

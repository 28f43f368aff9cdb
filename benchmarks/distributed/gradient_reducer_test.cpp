#include "benchmarks/distributed/gradient_reducer.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "benchmarks/distributed/testing.hpp"
#include "benchmarks/instruments/host_allocator.hpp"

namespace tinyllama::distributed {
namespace {

using testing::copies;
using testing::gradient_copies;
using testing::largest_difference;
using testing::run_ranks;
using testing::SmallTraining;

// Rounding of sums in another order, in float32.
constexpr double kAllowed = 1e-6;

constexpr int64_t kMiB = int64_t{1} << 20;

// float32 tensors of so many KiB each.
NamedTensors parameters_of(const std::vector<int64_t>& sizes_KiB) {
  NamedTensors parameters;
  for (const int64_t size : sizes_KiB)
    parameters.emplace_back(fmt::format("p{}", parameters.size()), at::zeros({size * 256}));
  return parameters;
}

TEST(GradientBucketsTest, TheLastParameterComesFirstAndBucketsAreFilled) {
  const std::pair<std::vector<int64_t>, GradientBuckets> cases[] = {
      {{4, 4, 4}, {{2, 1, 0}}},
      {{1024, 1024, 1024, 512, 512}, {{4, 3}, {2, 1}, {0}}},  // the first bucket is small
      {{16, 8192, 16, 16}, {{3, 2}, {1}, {0}}}};              // a large parameter travels alone
  for (const auto& [sizes_KiB, buckets] : cases)
    EXPECT_EQ(plan_buckets(parameters_of(sizes_KiB), 2 * kMiB), buckets);
  const NamedTensors parameters = parameters_of(cases[1].first);
  EXPECT_EQ(bucket_bytes(parameters, cases[1].second),
            (std::vector<int64_t>{kMiB, 2 * kMiB, kMiB}));
}

TEST(GradientBucketsTest, EveryParameterIsInOneBucketWhateverTheSizeAndTypesAreNotMixed) {
  NamedTensors parameters = parameters_of({7, 300, 1, 2048, 64, 64, 900, 3});
  parameters.emplace_back("half", at::zeros({8}, c10::ScalarType::Half));
  for (const int64_t bytes : {int64_t{1}, 64 * int64_t{1024}, kMiB, 100 * kMiB}) {
    const GradientBuckets buckets = plan_buckets(parameters, bytes);
    EXPECT_EQ(buckets.front(), std::vector<size_t>{8}) << "float16 alone";
    std::vector<int> found(parameters.size(), 0);
    for (const auto& bucket : buckets) {
      for (const size_t index : bucket) ++found.at(index);
    }
    EXPECT_EQ(found, std::vector<int>(parameters.size(), 1)) << bytes;
  }
  EXPECT_THROW(plan_buckets(parameters, 0), std::invalid_argument);
}

// Writes down what it is asked to do: "0" gradient 0 is ready, "[1" bucket 1 starts.
class NotedBackward final : public BucketedBackward {
 public:
  using BucketedBackward::BucketedBackward;
  std::string take_notes() { return std::exchange(notes_, {}); }
  std::function<void(size_t)> also_keep = [](size_t) {};

 private:
  void keep(size_t parameter) override {
    EXPECT_TRUE(gradient(parameter).defined());
    notes_ += std::to_string(parameter);
    also_keep(parameter);
  }
  Pending send(size_t bucket) override {
    notes_ += "[" + std::to_string(bucket);
    return {};
  }
  std::string notes_;
};

// Gradients get ready from the last factor to the first.
void backward_over(const NamedTensors& parameters, const std::vector<size_t>& factors) {
  at::Tensor value = at::ones({1});
  for (const size_t index : factors) value = value * parameters[index].second;
  value.sum().backward();
}

NamedTensors scalars(size_t count) {
  NamedTensors parameters;
  for (size_t i = 0; i < count; ++i)
    parameters.emplace_back(fmt::format("p{}", i), at::ones({1}).requires_grad_());
  return parameters;
}

TEST(BucketedBackwardTest, BucketsStartInTheirOrderAsSoonAsTheyAreComplete) {
  const NamedTensors parameters = scalars(4);
  NotedBackward backward(parameters, {.bucket_bytes = 8});
  ASSERT_EQ(backward.buckets(), (GradientBuckets{{3, 2}, {1, 0}}));
  backward.attach();
  // The second bucket is complete first, and waits for its turn.
  for (int repetition = 0; repetition < 2; ++repetition) {
    backward.begin();
    backward_over(parameters, {2, 3, 0, 1});
    backward.finish();
    EXPECT_EQ(backward.take_notes(), "1032[0[1");
  }
  backward.set_overlap(false);
  backward.begin();
  backward_over(parameters, {0, 1, 2, 3});
  EXPECT_EQ(backward.take_notes(), "3210");
  backward.finish();
  EXPECT_EQ(backward.take_notes(), "[0[1");
  backward.send_all();
  EXPECT_EQ(backward.take_notes(), "[0[1");
}

TEST(BucketedBackwardTest, AGradientThatIsMissingOrComesTwiceIsAnErrorAndSoIsWhatAHookThrows) {
  const NamedTensors parameters = scalars(2);
  NotedBackward backward(parameters, {});
  backward.attach();
  backward_over(parameters, {0});
  EXPECT_CONTAINS(::tinyllama::testing::error_of<std::logic_error>([&] { backward.finish(); }),
                  "p1 got no gradient");
  EXPECT_THROW(backward_over(parameters, {0}), std::logic_error);
  backward.also_keep = [](size_t) { throw std::domain_error("from a hook"); };
  EXPECT_THROW(backward_over(parameters, {1}), std::domain_error);
}

TEST(BucketedBackwardTest, WithoutHooksABackwardIsNotWatched) {
  const NamedTensors parameters = scalars(1);
  {
    NotedBackward backward(parameters, {});
    backward_over(parameters, {0});
    backward.attach();
    backward.detach();
    backward_over(parameters, {0});
    EXPECT_EQ(backward.take_notes(), "");
    backward.attach();
  }
  backward_over(parameters, {0});
}

std::vector<at::Tensor> gradients_of_one_process(int ranks) {
  SmallTraining one(ranks);
  one.step.backward(one.step.forward(one.all));
  return gradient_copies(one.parameters);
}

void reduce(SmallTraining& training, ProcessGroup& group, GradientReducer& reducer) {
  const at::Tensor loss = training.step.forward(training.samples_of(group.rank()), group.size());
  reducer.begin();
  training.step.backward(loss);
  reducer.finish();
}

struct Setting {
  int ranks;
  int64_t bucket_bytes;
  bool overlap;
};

TEST(GradientReducerTest, GradientsAreThoseOfOneProcessWithAllSamples) {
  const Setting settings[] = {{1, 1 << 20, true}, {2, 1 << 20, true}, {2, 1, true},
                              {2, 600, false},    {3, 600, true},     {4, 1 << 20, false},
                              {4, 600, true}};
  for (const Setting& setting : settings) {
    const auto expected = gradients_of_one_process(setting.ranks);
    run_ranks(setting.ranks, [&](ProcessGroup& group) {
      SmallTraining training(group.size());
      GradientReducer reducer(group, training.parameters,
                              {.bucket_bytes = setting.bucket_bytes, .overlap = setting.overlap});
      reducer.attach();
      for (int repetition = 0; repetition < 2; ++repetition) {
        training.optimizer.clear_gradients();
        reduce(training, group, reducer);
        EXPECT_LE(largest_difference(gradient_copies(training.parameters), expected), kAllowed)
            << setting.ranks << " ranks, buckets of " << setting.bucket_bytes << " bytes";
      }
    });
  }
}

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
  const Variant variant({Switch::qkv, Switch::gate_up, Switch::tiled_gemm});
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

// The allocator that counts must be there before the first tensor.
class AllocatorEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { instruments::host_allocator::install(); }
};
const ::testing::Environment* const kAllocatorEnvironment =
    ::testing::AddGlobalTestEnvironment(new AllocatorEnvironment);

// What a training is refused by where memory is short.
TEST(ShardedAdamWTest, ARankHoldsWhatIsPredictedOfIt) {
  for (const int ranks : {2, 8}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      const SmallTraining training(group.size());
      int64_t weights = 0;
      for (const auto& [name, parameter] : training.parameters)
        weights += static_cast<int64_t>(parameter.nbytes());
      // All ranks are threads of this process; each reads while none allocates.
      const auto live_bytes = [&] {
        group.barrier();
        const int64_t bytes = instruments::host_allocator::read().live_bytes;
        group.barrier();
        return bytes;
      };
      const int64_t before = live_bytes();
      const ShardedAdamW sharded(group, training.parameters, {}, kOptions, {.bucket_bytes = 600});
      const int64_t held = (live_bytes() - before) / group.size();
      // In place of whole moments.
      const int64_t predicted = 2 * weights + bytes_beside_step(weights, group.size(), true);
      // Rounded up to equal shares: at most one element less a rank in each of five tensors.
      const auto padding = static_cast<int64_t>(sharded.buckets().size()) * 5 * 4 * group.size();
      EXPECT_GE(held, predicted - 3) << group.size() << " ranks";
      EXPECT_LE(held, predicted + padding) << group.size() << " ranks";
    });
  }
}

}  // namespace
}  // namespace tinyllama::distributed

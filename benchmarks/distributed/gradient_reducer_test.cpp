#include "benchmarks/distributed/gradient_reducer.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "benchmarks/distributed/testing.hpp"

namespace tinyllama::distributed {
namespace {

using testing::copies;
using testing::gradient_copies;
using testing::kAllowed;
using testing::kAllowedWeights;
using testing::kSteps;
using testing::largest_difference;
using testing::live_bytes;
using testing::run_ranks;
using testing::SmallTraining;

constexpr int64_t kMiB = int64_t{1} << 20;

// float32 tensors of so many KiB each.
NamedTensors parameters_of(const std::vector<int64_t>& sizes_KiB) {
  NamedTensors parameters;
  for (const int64_t size : sizes_KiB)
    parameters.emplace_back(fmt::format("p{}", parameters.size()), at::zeros({size * 256}));
  return parameters;
}

TEST(GradientBucketsTest, TheLastParameterComesFirstAndABucketEndsWhenItIsFull) {
  const std::pair<std::vector<int64_t>, GradientBuckets> cases[] = {
      {{4, 4, 4}, {{2, 1, 0}}},
      {{1024, 1024, 1024, 512, 512}, {{4, 3}, {2, 1}, {0}}},  // the first bucket is small
      {{16, 8192, 16, 16}, {{3, 2, 1}, {0}}}};
  for (const auto& [sizes_KiB, buckets] : cases)
    EXPECT_EQ(plan_buckets(parameters_of(sizes_KiB), 2 * kMiB), buckets);
  const NamedTensors parameters = parameters_of(cases[1].first);
  BucketOptions options = {.bucket_bytes = 2 * kMiB};
  EXPECT_EQ(message_bytes(parameters, options), (std::vector<int64_t>{kMiB, 2 * kMiB, kMiB}));
  options.compress = c10::ScalarType::BFloat16;
  EXPECT_EQ(message_bytes(parameters, options), (std::vector<int64_t>{kMiB / 2, kMiB, kMiB / 2}));
}

TEST(GradientBucketsTest, EveryParameterIsInOneBucketWhateverTheSizeAndTypesAreNotMixed) {
  NamedTensors parameters = parameters_of({7, 300, 1, 2048, 64, 64, 900, 3});
  parameters.emplace_back("half", at::zeros({8}, c10::ScalarType::Half));
  for (const int64_t bytes : {int64_t{1}, 64 * int64_t{1024}, kMiB, 100 * kMiB}) {
    const GradientBuckets buckets = plan_buckets(parameters, bytes);
    EXPECT_EQ(std::ranges::count(buckets, std::vector<size_t>{8}), 1) << "float16 alone";
    std::vector<int> found(parameters.size(), 0);
    for (const auto& bucket : buckets) {
      for (const size_t index : bucket) ++found.at(index);
    }
    EXPECT_EQ(found, std::vector<int>(parameters.size(), 1)) << bytes;
  }
  EXPECT_THROW(plan_buckets(parameters, 0), std::invalid_argument);
}

// Gradients get ready from the last factor to the first.
void backward_over(const NamedTensors& parameters, const std::vector<size_t>& factors) {
  at::Tensor value = at::ones({1});
  for (const size_t index : factors) value = value * parameters[index].second;
  value.sum().backward();
}

// A reducer of scalars that writes down when it sends which bucket, and when a backward has ended.
struct NotedReducer {
  explicit NotedReducer(size_t count) {
    for (size_t i = 0; i < count; ++i)
      parameters.emplace_back(fmt::format("p{}", i), at::ones({1}).requires_grad_());
    const auto note = [this](size_t bucket, const at::Tensor&) {
      notes += std::to_string(bucket);
      return Pending();
    };
    reducer.emplace(alone, parameters, BucketOptions{.bucket_bytes = 8}, note);
  }

  std::string notes_of(const std::vector<size_t>& factors) {
    notes.clear();
    reducer->backward([&] {
      backward_over(parameters, factors);
      notes += '.';
    });
    return notes;
  }

  ProcessGroup alone{{}, instruments::Device::select("cpu"), std::chrono::milliseconds(100), {}};
  NamedTensors parameters;
  std::string notes;
  std::optional<GradientReducer> reducer;
};

TEST(GradientReducerTest, BucketsStartInTheirOrderAsSoonAsTheyAreCompleteOrAfterTheBackward) {
  NotedReducer noted(4);
  for (int repetition = 0; repetition < 2; ++repetition) {
    EXPECT_EQ(noted.notes_of({0, 1, 2, 3}), "01.");
    EXPECT_EQ(noted.notes_of({2, 3, 0, 1}), "01.") << "the second is complete first";
  }
  noted.reducer->set_overlap(false);
  EXPECT_EQ(noted.notes_of({0, 1, 2, 3}), ".01");
  noted.reducer->send_all();
  EXPECT_EQ(noted.notes, ".0101");
  backward_over(noted.parameters, {0, 1, 2, 3});
  EXPECT_EQ(noted.notes, ".0101") << "nobody asked for it";
}

TEST(GradientReducerTest, AGradientThatIsMissingOrComesTwiceIsAnErrorAndSoIsWhatABackwardThrows) {
  EXPECT_CONTAINS(::tinyllama::testing::error_of<c10::Error>([] { NotedReducer(2).notes_of({0}); }),
                  "did not receive grad for rank 0: 1");
  NotedReducer twice(2);
  EXPECT_THROW(twice.reducer->backward([&] {
    backward_over(twice.parameters, {0});
    backward_over(twice.parameters, {0});
  }),
               c10::Error);
  NotedReducer noted(2);
  EXPECT_THROW(noted.reducer->backward([] { throw std::domain_error("from a layer"); }),
               std::domain_error);
}

std::vector<at::Tensor> gradients_of_one_process(int ranks) {
  SmallTraining one(ranks);
  one.step.backward(one.step.forward(one.all));
  return gradient_copies(one.parameters);
}

void reduce(SmallTraining& training, ProcessGroup& group, GradientReducer& reducer) {
  const at::Tensor loss = training.step.forward(training.samples_of(group.rank()), group.size());
  reducer.backward([&] { training.step.backward(loss); });
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
      // c10d cuts its buckets anew after the first.
      for (int repetition = 0; repetition < 3; ++repetition) {
        training.optimizer.clear_gradients();
        reduce(training, group, reducer);
        EXPECT_LE(largest_difference(gradient_copies(training.parameters), expected), kAllowed)
            << setting.ranks << " ranks, buckets of " << setting.bucket_bytes << " bytes";
      }
    });
  }
}

// Beside what the type rounds off they are the same, and the same on all ranks.
TEST(GradientReducerTest, CompressedGradientsHaveTheRoundingOfTheirType) {
  const std::pair<c10::ScalarType, double> cases[] = {{c10::ScalarType::BFloat16, 0x1p-7},
                                                      {c10::ScalarType::Half, 0x1p-10}};
  const auto expected = gradients_of_one_process(4);
  for (const auto& [type, unit] : cases) {
    for (const bool overlap : {true, false}) {
      run_ranks(4, [&, type = type, unit = unit](ProcessGroup& group) {
        SmallTraining training(group.size());
        GradientReducer reducer(group, training.parameters,
                                {.bucket_bytes = 600, .overlap = overlap, .compress = type});
        reduce(training, group, reducer);
        const double error = largest_difference(gradient_copies(training.parameters), expected);
        EXPECT_LE(error, 2 * unit);
        EXPECT_GE(error, unit / 64) << "not compressed";
        NamedTensors gradients;
        for (const auto& [name, parameter] : training.parameters)
          gradients.emplace_back(name, parameter.grad());
        EXPECT_EQ(group.differing_ranks("gradients", gradients), "");
      });
    }
  }
}

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
  for (int step = 0; step < kSteps; ++step) {
    sharded.clear_gradients();
    const at::Tensor loss = training.step.forward(training.samples_of(group.rank()), group.size());
    sharded.backward([&] { training.step.backward(loss); });
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
    EXPECT_NEAR(training.step.forward(training.all).item<double>(), expected, kAllowedWeights);
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
      EXPECT_LE(largest_difference(copies(training.parameters), copies(one.parameters)),
                kAllowedWeights);
      EXPECT_EQ(group.differing_ranks("weights", training.parameters), "");
    });
  }
}

// What a training is refused by where memory is short.
TEST(ShardedAdamWTest, ARankHoldsWhatIsPredictedOfIt) {
  for (const int ranks : {2, 8}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      const SmallTraining training(group.size());
      const int64_t before = live_bytes(group);
      const ShardedAdamW sharded(group, training.parameters, {}, kOptions, {.bucket_bytes = 600});
      const int64_t held = (live_bytes(group) - before) / group.size();
      EXPECT_EQ(held, sharded_adamw_bytes(training.parameters, group.size(), 600).held());
    });
  }
}

}  // namespace
}  // namespace tinyllama::distributed

#include "benchmarks/distributed/gradient_reducer.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <ostream>
#include <stdexcept>

#include "benchmarks/distributed/step_testing.hpp"
#include "benchmarks/distributed/testing.hpp"

namespace tinyllama::distributed {
namespace {

using testing::copies;
using testing::gradient_copies;
using testing::largest_difference;
using testing::run_ranks;
using testing::SmallTraining;

// Rounding of sums in another order, in float32.
constexpr double kAllowed = 1e-6;

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

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.ranks << " ranks, " << setting.bucket_bytes << " bytes a bucket, "
       << (setting.overlap ? "overlapped" : "afterwards");
}

class GradientReducerTest : public ::testing::TestWithParam<Setting> {};

TEST_P(GradientReducerTest, GradientsAreThoseOfOneProcessWithAllSamples) {
  const auto [ranks, bucket_bytes, overlap] = GetParam();
  const auto expected = gradients_of_one_process(ranks);
  run_ranks(ranks, [&, bytes = bucket_bytes, early = overlap](ProcessGroup& group) {
    SmallTraining training(group.size());
    GradientReducer reducer(group, training.parameters, {.bucket_bytes = bytes, .overlap = early});
    reducer.attach();
    for (int repetition = 0; repetition < 2; ++repetition) {
      training.optimizer.clear_gradients();
      reduce(training, group, reducer);
      EXPECT_LE(largest_difference(gradient_copies(training.parameters), expected), kAllowed);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(RanksAndBuckets, GradientReducerTest,
                         ::testing::Values(Setting{1, 1 << 20, true}, Setting{2, 1 << 20, true},
                                           Setting{2, 1, true}, Setting{2, 600, false},
                                           Setting{3, 600, true}, Setting{4, 1 << 20, false},
                                           Setting{4, 600, true}),
                         ::tinyllama::testing::kNamedByParameter);

TEST(GradientReducerStepTest, WeightsStayTheSameToTheBitOnAllRanks) {
  std::mutex guard;
  std::vector<std::vector<at::Tensor>> weights;
  run_ranks(3, [&](ProcessGroup& group) {
    SmallTraining training(group.size());
    GradientReducer reducer(group, training.parameters, {.bucket_bytes = 600});
    reducer.attach();
    for (int step = 0; step < 5; ++step) {
      training.optimizer.clear_gradients();
      reduce(training, group, reducer);
      training.step.update();
    }
    const std::lock_guard<std::mutex> lock(guard);
    weights.push_back(copies(training.parameters));
  });
  ASSERT_EQ(weights.size(), 3U);
  for (size_t rank = 1; rank < weights.size(); ++rank) {
    for (size_t i = 0; i < weights[0].size(); ++i)
      EXPECT_TRUE(weights[rank][i].equal(weights[0][i])) << rank << " " << i;
  }
}

TEST(GradientReducerStepTest, GradientsOfEarlierMicroBatchesAreInTheSum) {
  const auto expected = gradients_of_one_process(2);
  run_ranks(2, [&](ProcessGroup& group) {
    SmallTraining training(group.size());
    GradientReducer reducer(group, training.parameters, {});
    const TokenBatch mine = training.samples_of(group.rank());
    // Samples one by one, each with its share of the mean; only the last backward is watched.
    for (int64_t sample = 0; sample < testing::kSamplesOfARank; ++sample) {
      const TokenBatch micro = {mine.tokens.narrow(0, sample, 1),
                                mine.targets.narrow(0, sample, 1)};
      const bool last = sample + 1 == testing::kSamplesOfARank;
      if (last) {
        reducer.attach();
        reducer.begin();
      }
      training.step.backward(training.step.forward(micro, testing::kSamplesOfARank * group.size()));
    }
    reducer.finish();
    EXPECT_LE(largest_difference(gradient_copies(training.parameters), expected), kAllowed);
  });
}

TEST(GradientReducerStepTest, AParameterWithoutAGradientIsNamed) {
  run_ranks(1, [](ProcessGroup& group) {
    SmallTraining training(1);
    GradientReducer reducer(group, training.parameters, {});
    reducer.attach();
    reducer.begin();
    training.parameters[0].second.sum().backward();
    try {
      reducer.finish();
      FAIL() << "nothing was thrown";
    } catch (const std::logic_error& error) {
      EXPECT_NE(std::string(error.what()).find(training.parameters[1].first), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace tinyllama::distributed

#include "benchmarks/training/trainer.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "benchmarks/training/testing.hpp"
#include "model/file_testing.hpp"

namespace tinyllama::training {
namespace {

using testing::small_options;
using testing::TrainingParts;
using ::tinyllama::testing::TemporaryFolder;

TEST(TrainerTest, AProfiledRunHasTheLossesOfAPlainOne) {
  const auto losses = [](bool profiled) {
    TrainOptions options = small_options();
    options.profile_pytorch = options.profile_operators = options.profile_stacks = profiled;
    options.profile_memory = profiled;
    const TemporaryFolder folder;
    TrainingParts parts(options);
    std::optional<OperatorRecorder> recorder;
    if (profiled) recorder.emplace(options, parts.device, folder.path());
    int recordings = 0;
    Trainer trainer(options, parts.device, parts.state, *parts.data,
                    {profiled ? &*recorder : nullptr, [&](MemoryRecording) { ++recordings; }});
    std::vector<double> values;
    trainer.on_step([&](const StepRecord& step) { values.push_back(step.loss); });
    trainer.run();
    EXPECT_EQ(recordings, profiled ? 1 : 0);
    return values;
  };
  const auto plain = losses(false);
  ASSERT_EQ(plain.size(), 7U);
  EXPECT_LT(plain.back(), plain.front());
  EXPECT_EQ(plain, losses(true));
}

TEST(TrainerTest, MicroBatchesOfOneBatchAreThatBatch) {
  TrainOptions options = small_options();
  options.profile_pytorch = false;
  options.gradient_accumulation_steps = 3;
  options.num_steps = 2;
  TrainingParts parts(options);
  double expected = 0;
  for (int micro = 0; micro < 3; ++micro)
    expected += parts.state.evaluate(parts.data->train_batch(1, micro)) / 3;
  Trainer trainer(options, parts.device, parts.state, *parts.data, {});
  std::vector<StepRecord> steps;
  trainer.on_step([&](const StepRecord& step) { steps.push_back(step); });
  trainer.run();
  EXPECT_NEAR(steps.front().loss, expected, 1e-6);
}

TEST(TrainerTest, ALossThatIsNotFiniteIsTheLast) {
  TrainOptions options = small_options();
  options.profile_pytorch = false;
  options.learning_rate = 1e30;
  options.num_steps = 50;
  TrainingParts parts(options);
  Trainer trainer(options, parts.device, parts.state, *parts.data, {});
  std::vector<StepRecord> steps;
  trainer.on_step([&](const StepRecord& step) { steps.push_back(step); });
  trainer.run();
  ASSERT_LT(steps.size(), 50U);
  EXPECT_FALSE(std::isfinite(steps.back().loss));
  for (size_t i = 0; i + 1 < steps.size(); ++i) EXPECT_TRUE(std::isfinite(steps[i].loss));
}

}  // namespace
}  // namespace tinyllama::training

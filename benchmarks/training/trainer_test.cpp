#include "benchmarks/training/trainer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "benchmarks/console/interrupt.hpp"
#include "benchmarks/training/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

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

/// Trains until an interrupt in the midst of the steps whose memory is recorded, 2 to 4, and says
/// what was kept.
[[noreturn]] void interrupt_while_recording_memory() {
  TrainOptions options = small_options();
  options.profile_pytorch = false;
  options.profile_memory = true;
  TrainingParts parts(options);
  std::string kept;
  const auto keep = [&](const MemoryRecording& recording) {
    for (const Stretch& step : recording.steps) kept += fmt::format(" {}", step.step);
  };
  Trainer trainer(options, parts.device, parts.state, *parts.data, {nullptr, keep});
  int64_t last = 0;
  trainer.on_step([&](const StepRecord& step) {
    last = step.step;
    if (last == 3) console::request_interrupt();
  });
  trainer.run();
  std::fprintf(stderr, "last step %d, memory of steps%s;\n", static_cast<int>(last), kept.c_str());
  std::_Exit(0);
}

// In a process of its own, since an interrupt cannot be taken back. That is started anew and not
// forked, because libtorch's threads would be missing from it.
TEST(TrainerDeathTest, MemoryIsKeptWhenInterruptedWhileRecording) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(interrupt_while_recording_memory(), ::testing::ExitedWithCode(0),
              "last step 3, memory of steps 2 3;");
}

}  // namespace
}  // namespace tinyllama::training

// StepGraph without a GPU: a fake captures by writing down what it is told, and replays what
// the test gives it. And AdamW's count of steps on the device.
#include <gtest/gtest.h>

#include "model/testing.hpp"
#include "model/train_step.hpp"

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>

namespace tinyllama::testing {
namespace {

struct Script {
  std::string calls;
  std::function<void()> on_begin, on_end, replay;
};

Script& script() {
  static Script one;
  return one;
}

class FakeGraph final : public at::GraphImplInterface {
 public:
  explicit FakeGraph(const at::GraphImplArgs& /*args*/) {}
  void capture_begin(at::MempoolId_t /*pool*/, at::GraphCaptureMode /*mode*/) override {
    script().calls += "begin ";
    if (script().on_begin) script().on_begin();
  }
  void capture_end() override {
    script().calls += "end ";
    if (script().on_end) script().on_end();
  }
  void instantiate() override { script().calls += "instantiate "; }
  void replay() override {
    script().calls += "replay ";
    if (script().replay) script().replay();
  }
  void reset() override { script().calls += "reset "; }
  at::MempoolId_t pool() const override { return {0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& /*path*/) override {}
};

}  // namespace
}  // namespace tinyllama::testing

namespace at {
REGISTER_GRAPH_IMPL(CPU, tinyllama::testing::FakeGraph);
}

namespace tinyllama {
namespace {

using testing::script;
using testing::small_config;

const std::vector<Variant> kUpdates = {Variant(), Variant({Switch::foreach_adamw}),
                                       Variant({Switch::fused_adamw})};

struct Training {
  explicit Training(const Variant& variant, Dtype dtype = Dtype::f64)
      : initializer(7, dtype, c10::kCPU),
        model(small_config(), variant, 6, initializer),
        optimizer(model.parameters(), variant, {.learning_rate = 1e-2, .weight_decay = 0.1}),
        batch(random_token_batch(small_config(), 2, 6, initializer)),
        step(model, optimizer) {
    testing::script() = {};
  }
  at::Tensor run() {
    optimizer.clear_gradients();
    return step.run({&batch, 1});
  }
  TensorInitializer initializer;
  TinyLlama model;
  AdamW optimizer;
  TokenBatch batch;
  TrainStep step;
};

NamedTensors state_of(const AdamW& optimizer) {
  NamedTensors state;
  for (const auto* tensors :
       {&optimizer.parameters(), &optimizer.first_moments(), &optimizer.second_moments()}) {
    for (const auto& [name, tensor] : *tensors) state.emplace_back(name, tensor.detach().clone());
  }
  return state;
}

void expect_same(const NamedTensors& actual, const NamedTensors& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LE((actual[i].second - expected[i].second).abs().max().item<double>(), tolerance)
        << actual[i].first;
  }
}

TEST(StepGraph, CapturesOneStepAndLeavesTheStateAsItWas) {
  Training training(Variant({Switch::graph}));
  training.run();
  const NamedTensors before = state_of(training.optimizer);
  const StepGraph graph(training.step, training.optimizer, training.batch);
  EXPECT_EQ(script().calls, "begin end ");
  EXPECT_EQ(training.optimizer.steps_done(), 1);
  expect_same(state_of(training.optimizer), before, 0);
}

TEST(StepGraph, ReplaysTakeTheStepsThatWouldHaveBeenTaken) {
  for (const Variant& update : kUpdates) {
    SCOPED_TRACE(update.name());
    Training expected(update), actual(update.with(Switch::graph));
    StepGraph graph(actual.step, actual.optimizer, actual.batch);
    // The fake's replay: the step again, its result where the captured one lies.
    at::Tensor loss;
    script().replay = [&] { loss = actual.run(); };
    for (int i = 0; i < 5; ++i) {
      const double expected_loss = expected.run().item<double>();
      graph.run();
      EXPECT_NEAR(loss.item<double>(), expected_loss, 1e-12);
    }
    expect_same(state_of(actual.optimizer), state_of(expected.optimizer), 1e-12);
  }
}

TEST(StepGraph, AFailedStepEndsItsCapture) {
  Training training(Variant({Switch::graph}));
  script().on_begin = [&] { training.batch.tokens.fill_(1'000'000); };
  EXPECT_THROW(StepGraph(training.step, training.optimizer, training.batch), c10::Error);
  EXPECT_EQ(script().calls, "begin end ");
}

// A moment of another shape stands for a device that can no longer copy.
TEST(StepGraph, AStateThatCannotBePutBackIsAnError) {
  Training training(Variant({Switch::graph}));
  script().on_end = [&] { training.optimizer.first_moments().front().second.resize_({1}); };
  EXPECT_THROW(StepGraph(training.step, training.optimizer, training.batch), c10::Error);
}

TEST(StepGraph, AFailedStepsOwnErrorIsTheOneThatIsTold) {
  Training training(Variant({Switch::graph}));
  // All that comes after it fails as well: the end of the capture, then putting the state back.
  script().on_end = [] { TORCH_CHECK(false, "a later error"); };
  script().on_begin = [&] {
    training.optimizer.first_moments().front().second.resize_({1});
    training.batch.tokens.fill_(1'000'000);
  };
  const std::string error = testing::error_of<c10::Error>(
      [&] { StepGraph(training.step, training.optimizer, training.batch); });
  EXPECT_CONTAINS(error, "out of range");
}

TEST(StepGraph, CanCaptureWhatLibtorchHasAnImplementationFor) {
  EXPECT_TRUE(can_capture(c10::DeviceType::CPU));  // the fake
  EXPECT_FALSE(can_capture(c10::DeviceType::Meta));
}

}  // namespace
}  // namespace tinyllama
#endif

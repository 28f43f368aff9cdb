// The model as a whole, its optimiser and the training step.
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "model/relative_error.hpp"
#include "model/testing.hpp"
#include "model/train_step.hpp"

// A fake of libtorch's graphs captures by writing down what it is told, and replays what the test
// gives it, so that StepGraph is tested without a GPU.
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
#define TINYLLAMA_TESTS_GRAPHS
#endif

namespace tinyllama {
namespace {

using testing::small_config;

struct Training {
  Training(const Variant& variant, Dtype dtype, int64_t samples = 2, int64_t seq = 6,
           const AdamWOptions& options = {})
      : initializer(42, dtype, c10::kCPU),
        model(small_config(), variant, seq, initializer),
        optimizer(model.parameters(), variant, options),
        batch(random_token_batch(small_config(), samples, seq, initializer)),
        step(model, optimizer) {}
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

TEST(TinyLlama, WeightsAreTheSameValuesInEveryDtype) {
  const auto weights = [](Dtype dtype) {
    TensorInitializer initializer(5, dtype, c10::kCPU);
    const Embedding layer(small_config(), initializer);
    return to_values(layer.parameters("")[0].second);
  };
  for (const Dtype dtype : benchmark_dtypes())
    EXPECT_EQ(weights(Dtype::f64), weights(dtype)) << to_string(dtype);
}

TEST(AdamW, SkipsParametersWithoutGradient) {
  TensorInitializer initializer(9, Dtype::f64, c10::kCPU);
  const at::Tensor parameter = initializer.normal_parameter({5});
  const at::Tensor before = parameter.detach().clone();
  AdamW({{"p", parameter}}, Variant()).step();
  EXPECT_TRUE(parameter.detach().equal(before));
}

TEST(TrainStep, MicroBatchesAddUpToTheWholeBatch) {
  Training whole(Variant(), Dtype::f64, 4);
  Training parts(Variant(), Dtype::f64, 4);
  std::vector<TokenBatch> micro_batches;
  for (int64_t first = 0; first < 4; first += 2) {
    micro_batches.push_back({parts.batch.tokens.narrow(0, first, 2),
                             parts.batch.targets.narrow(0, first, 2).contiguous()});
  }
  const double loss = whole.run().item<double>();
  EXPECT_NEAR(parts.step.run(micro_batches).item<double>(), loss, 1e-12);
  for (size_t i = 0; i < whole.optimizer.parameters().size(); ++i) {
    EXPECT_TRUE(parts.optimizer.parameters()[i].second.grad().allclose(
        whole.optimizer.parameters()[i].second.grad(), /*rtol=*/0, /*atol=*/1e-12));
  }
  EXPECT_THROW(parts.step.run({}), std::invalid_argument);
}

TEST(TrainStep, DtypesDecideTheTypesOfParametersAndMoments) {
  for (const Dtype dtype : benchmark_dtypes()) {
    Training training(Variant(), dtype);
    training.run();
    EXPECT_EQ(training.optimizer.parameters()[0].second.scalar_type(), storage_type(dtype))
        << to_string(dtype);
    EXPECT_EQ(training.optimizer.parameters()[0].second.grad().scalar_type(), storage_type(dtype))
        << to_string(dtype);
    EXPECT_EQ(training.optimizer.first_moments()[0].second.scalar_type(), storage_type(dtype))
        << to_string(dtype);
  }
}

TEST(LossScaler, SkipsTheUpdateAndHalvesTheScaleWhenAGradientOverflows) {
  Training training(Variant(), Dtype::f32);
  LossScaler scaler(c10::kCPU);
  const double scale = scaler.current_scale();
  scaler.scale(training.step.forward(training.batch)).backward();
  const at::Tensor& parameter = training.optimizer.parameters()[0].second;
  const at::Tensor before = parameter.detach().clone();
  parameter.mutable_grad().view(-1)[0].fill_(std::numeric_limits<double>::infinity());
  EXPECT_FALSE(scaler.unscale_and_step(training.optimizer));
  EXPECT_TRUE(before.equal(parameter.detach()));
  EXPECT_EQ(scaler.current_scale(), scale / 2);
}

#ifdef TINYLLAMA_TESTS_GRAPHS
using testing::script;

const std::vector<Variant> kUpdates = {Variant(), Variant({Switch::foreach_adamw}),
                                       Variant({Switch::fused_adamw}),
                                       Variant({Switch::library_adamw})};

// Begins a script anew.
struct CapturedTraining : Training {
  explicit CapturedTraining(const Variant& variant)
      : Training(variant, Dtype::f64, 2, 6, {.learning_rate = 1e-2, .weight_decay = 0.1}) {
    script() = {};
  }
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
  CapturedTraining training(Variant({Switch::graph}));
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
    CapturedTraining expected(update), actual(update.with(Switch::graph));
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
  CapturedTraining training(Variant({Switch::graph}));
  script().on_begin = [&] { training.batch.tokens.fill_(1'000'000); };
  EXPECT_THROW(StepGraph(training.step, training.optimizer, training.batch), c10::Error);
  EXPECT_EQ(script().calls, "begin end ");
}

// A moment of another shape stands for a device that can no longer copy.
TEST(StepGraph, AStateThatCannotBePutBackIsAnError) {
  CapturedTraining training(Variant({Switch::graph}));
  script().on_end = [&] { training.optimizer.first_moments().front().second.resize_({1}); };
  EXPECT_THROW(StepGraph(training.step, training.optimizer, training.batch), c10::Error);
}

TEST(StepGraph, AFailedStepsOwnErrorIsTheOneThatIsTold) {
  CapturedTraining training(Variant({Switch::graph}));
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

#endif
}  // namespace
}  // namespace tinyllama

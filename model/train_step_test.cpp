// The model as a whole, its optimiser and the training step.
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "model/testing.hpp"
#include "model/train_step.hpp"

namespace tinyllama {
namespace {

using testing::expect_near;
using testing::small_config;
using testing::values;

struct Training {
  Training(const ModelConfig& config, Dtype dtype, int64_t samples, int64_t seq,
           const AdamWOptions& options = {})
      : initializer(42, dtype, c10::kCPU),
        model(config, Variant(), seq, initializer),
        optimizer(model.parameters(), Variant(), options),
        batch(random_token_batch(config, samples, seq, initializer)),
        step(model, optimizer) {}
  double run() {
    optimizer.clear_gradients();
    return step.run({&batch, 1}).item().toDouble();
  }
  TensorInitializer initializer;
  TinyLlama model;
  AdamW optimizer;
  TokenBatch batch;
  TrainStep step;
};

TEST(TinyLlama, HasThePredictedParametersUnderUniqueNames) {
  TensorInitializer initializer(1, Dtype::f32, c10::kCPU);
  const TinyLlama model(ModelConfig(), Variant(), 8, initializer);
  int64_t count = 0;
  std::set<std::string> names;
  for (const auto& [name, parameter] : model.parameters()) {
    count += parameter.numel();
    names.insert(name);
    EXPECT_TRUE(parameter.requires_grad()) << name;
  }
  EXPECT_EQ(count, 2'873'600);
  EXPECT_EQ(names.size(), model.parameters().size());
  EXPECT_TRUE(names.contains("model.layers.3.self_attn.k_proj.weight"));
}

TEST(TinyLlama, SeedDecidesEveryWeight) {
  const auto weights = [](uint64_t seed) {
    TensorInitializer initializer(seed, Dtype::f64, c10::kCPU);
    return values(TinyLlama(small_config(), Variant(), 4, initializer).parameters()[1 + 1].second);
  };
  EXPECT_EQ(weights(3), weights(3));
  EXPECT_NE(weights(3), weights(4));
}

TEST(TinyLlama, WeightsAreTheSameValuesInEveryDtype) {
  const auto weights = [](Dtype dtype) {
    TensorInitializer initializer(5, dtype, c10::kCPU);
    const Embedding layer(small_config(), initializer);
    return values(layer.parameters("")[0].second.to(c10::ScalarType::Double));
  };
  for (const Dtype dtype : benchmark_dtypes())
    EXPECT_EQ(weights(Dtype::f64), weights(dtype)) << to_string(dtype);
}

TEST(AdamW, SkipsParametersWithoutGradient) {
  TensorInitializer initializer(9, Dtype::f64, c10::kCPU);
  const at::Tensor parameter = initializer.normal_parameter({5});
  const auto before = values(parameter);
  AdamW({{"p", parameter}}, Variant()).step();
  EXPECT_EQ(values(parameter), before);
}

TEST(TrainStep, MicroBatchesAddUpToTheWholeBatch) {
  Training whole(small_config(), Dtype::f64, 4, 6);
  Training parts(small_config(), Dtype::f64, 4, 6);
  std::vector<TokenBatch> micro_batches;
  for (int64_t first = 0; first < 4; first += 2) {
    micro_batches.push_back({parts.batch.tokens.narrow(0, first, 2),
                             parts.batch.targets.narrow(0, first, 2).contiguous()});
  }
  const double loss = whole.run();
  EXPECT_NEAR(parts.step.run(micro_batches).item<double>(), loss, 1e-12);
  for (size_t i = 0; i < whole.optimizer.parameters().size(); ++i) {
    expect_near(values(parts.optimizer.parameters()[i].second.grad()),
                values(whole.optimizer.parameters()[i].second.grad()), 1e-12);
  }
  EXPECT_THROW(parts.step.run({}), std::invalid_argument);
}

TEST(TrainStep, DtypesDecideTheTypesOfParametersAndMoments) {
  for (const Dtype dtype : benchmark_dtypes()) {
    Training training(small_config(), dtype, 2, 4);
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
  Training training(small_config(), Dtype::f32, 2, 4);
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

TEST(LossScaler, GivesTheOptimizerUnscaledGradients) {
  Training plain(small_config(), Dtype::f32, 2, 4);
  Training scaled(small_config(), Dtype::f32, 2, 4);
  plain.run();
  LossScaler scaler(c10::kCPU);
  scaler.scale(scaled.step.forward(scaled.batch)).backward();
  EXPECT_TRUE(scaler.unscale_and_step(scaled.optimizer));
  for (size_t i = 0; i < plain.optimizer.parameters().size(); ++i) {
    const auto difference =
        (plain.optimizer.parameters()[i].second - scaled.optimizer.parameters()[i].second)
            .abs()
            .max();
    EXPECT_LT(difference.item<float>(), 1e-6f);
  }
}

}  // namespace
}  // namespace tinyllama

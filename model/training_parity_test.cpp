// Training against LlamaForCausalLM: `tiny` learns one fixed batch by heart along the same curve of
// losses (fixtures/golden/training_tiny.json).
#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/config.hpp"
#include "model/proof_record.hpp"
#include "model/train_step.hpp"
#include "model/variant.hpp"

namespace tinyllama {
namespace {

constexpr const char* kSection = "Training";
constexpr size_t kComparedSteps = 50;
// Nats a token, each of the first 50 losses in float32. float64 must follow far closer: what is
// left is rounding, which 50 steps of Adam multiply.
constexpr double kFloat32Tolerance = 1e-3;
constexpr double kFloat64Tolerance = 1e-9;
// A batch learned by heart: a model that knows nothing has 6.9.
constexpr double kLearnedLoss = 3;
// Narrow matrix multiplications round differently in every library: the decrease over 50 steps is
// compared.
constexpr double kDecreaseTolerance = 0.05;

using Curve = std::vector<double>;

class TrainingParityTest : public ::testing::Test {
 protected:
  TrainingParityTest() {
    std::ifstream file(TINY_LLAMA_SOURCE_DIR "/fixtures/golden/training_tiny.json");
    document_ = nlohmann::json::parse(file);
  }

  Curve oracle(const std::string& name) const {
    return document_.at("losses").at(name).get<Curve>();
  }
  Curve oracle(Dtype dtype) const { return oracle(std::string(to_string(dtype))); }

  AdamWOptions adamw() const {
    const auto& options = document_.at("adamw");
    return {.learning_rate = options.at("lr").get<double>(),
            .beta1 = options.at("betas").at(0).get<double>(),
            .beta2 = options.at("betas").at(1).get<double>(),
            .eps = options.at("eps").get<double>(),
            .weight_decay = options.at("weight_decay").get<double>()};
  }

  // Losses before each update, from the oracle's weights and tokens. `micro_batches`: of so many
  // the batch is one, which alone gives its gradients.
  Curve train(Dtype dtype, size_t steps, const Variant& variant, const AdamWOptions& options,
              int64_t micro_batches = 1) const {
    const auto sizes = load_problem_sizes(TINY_LLAMA_SOURCE_DIR "/fixtures/problem_sizes.json");
    const auto size = std::find_if(sizes.begin(), sizes.end(), [&](const ProblemSize& candidate) {
      return candidate.name == document_.at("size").get<std::string>();
    });
    const auto batch = document_.at("batch").get<int64_t>();
    const auto seq = document_.at("seq").get<int64_t>();
    TensorInitializer initializer(document_.at("seed").get<uint64_t>(), dtype, c10::kCPU);
    const TinyLlama model(size->config, variant, seq, initializer);
    AdamW optimizer(model.parameters(), variant, options);
    TrainStep step(model, optimizer);
    const TokenBatch tokens = random_token_batch(size->config, batch, seq, initializer);
    expect_the_oracles_start(model, tokens.tokens);
    Curve losses;
    for (size_t i = 0; i < steps; ++i) {
      optimizer.clear_gradients();
      const at::Tensor loss = step.forward(tokens, micro_batches);
      step.backward(loss);
      step.update();
      losses.push_back(loss.item().toDouble() * static_cast<double>(micro_batches));
    }
    return losses;
  }

  // The losses of the first steps are the oracle's in float32 or float64.
  void expect_the_oracles_curve(Dtype dtype, const Variant& variant, double tolerance) const {
    testing::ProofRecord proof(
        {kSection, fmt::format("first 50 losses of tiny, {}, {}", to_string(dtype), variant.name()),
         fmt::format("LlamaForCausalLM and torch.optim.AdamW, {} (nats a token)",
                     dtype == Dtype::f64 ? "float64" : "float32"),
         tolerance});
    const Curve losses = train(dtype, kComparedSteps, variant, adamw());
    const Curve expected = oracle(dtype);
    for (size_t i = 0; i < kComparedSteps; ++i) {
      proof.expect(std::abs(losses[i] - expected.at(i)),
                   fmt::format("loss of step {}: {}, expected {}", i + 1, losses[i], expected[i]));
    }
  }

  // How far the decrease of the loss since the first step is from the expected one, relative to
  // that; the largest over all steps. Only the last would not do: in the end the batch is known by
  // heart whatever went wrong on the way.
  static double decrease_error(const Curve& losses, const Curve& expected) {
    double largest = 0;
    for (size_t i = 1; i < losses.size(); ++i) {
      const double decrease = losses.front() - losses[i];
      const double expected_decrease = expected.front() - expected.at(i);
      largest = std::max(largest, std::abs(decrease - expected_decrease) / expected_decrease);
    }
    return largest;
  }

 private:
  // Both sides draw weights and tokens from the seed; where the draws differ, no curve can agree.
  void expect_the_oracles_start(const TinyLlama& model, const at::Tensor& tokens) const {
    int64_t checksum = 0;  // of weight i's bits as bfloat16, times i + 1; norms are not drawn
    int64_t first = 1;
    for (const auto& [name, parameter] : model.parameters()) {
      if (parameter.dim() < 2) continue;
      const at::Tensor bits = parameter.detach()
                                  .to(c10::ScalarType::BFloat16)
                                  .view(c10::ScalarType::Short)
                                  .to(c10::ScalarType::Long)
                                  .reshape(-1);
      const at::Tensor factors = at::arange(first, first + bits.numel(), bits.options());
      checksum += (bits * factors).sum().item<int64_t>();
      first += bits.numel();
    }
    ASSERT_EQ(checksum, document_.at("weights_checksum").get<int64_t>());
    std::vector<int64_t> expected;
    for (const auto& row : document_.at("tokens")) {
      for (const auto& token : row) expected.push_back(token.get<int64_t>());
    }
    const int64_t* data = tokens.const_data_ptr<int64_t>();
    ASSERT_EQ(std::vector<int64_t>(data, data + tokens.numel()), expected);
  }

  nlohmann::json document_;
};

TEST_F(TrainingParityTest, Float32FollowsTheOraclesCurve) {
  for (const Variant& variant : runnable_variants(Dtype::f32, cpu_traits()))
    expect_the_oracles_curve(Dtype::f32, variant, kFloat32Tolerance);
}

TEST_F(TrainingParityTest, Float64FollowsTheOraclesCurve) {
  expect_the_oracles_curve(Dtype::f64, Variant(), kFloat64Tolerance);
}

TEST_F(TrainingParityTest, LearnsTheBatchByHeart) {
  const Variant optimized = optimized_variant(Dtype::f32, cpu_traits());
  for (const Variant& variant : {Variant(), optimized}) {
    const Curve losses = train(Dtype::f32, 200, variant, adamw());
    testing::ProofRecord learned(
        {kSection, fmt::format("lowest loss of tiny within 200 steps, f32, {}", variant.name()),
         "learning by heart (nats a token)", kLearnedLoss});
    learned.expect(*std::min_element(losses.begin(), losses.end()), variant.name());
  }
}

// Of the other variants, the gate compares every gradient in these types; a curve of each would
// take minutes where narrow matrix multiplications are slow.
TEST_F(TrainingParityTest, NarrowTypesDecreaseTheLossAsTheOracleDoes) {
  const Variant optimized = optimized_variant(Dtype::bf16, cpu_traits());
  for (const Variant& variant : {Variant(), optimized}) {
    testing::ProofRecord proof(
        {kSection,
         fmt::format("decrease of the loss of tiny at each of 50 steps, bf16 and autocast, {}",
                     variant.name()),
         "LlamaForCausalLM and torch.optim.AdamW in the same type", kDecreaseTolerance});
    for (const Dtype dtype : {Dtype::bf16, Dtype::amp_bf16, Dtype::amp_f16}) {
      const Curve losses = train(dtype, kComparedSteps, variant, adamw());
      proof.expect(
          decrease_error(losses, oracle(dtype)),
          fmt::format("{}: from {} to {}, expected from {} to {}", to_string(dtype), losses.front(),
                      losses.back(), oracle(dtype).front(), oracle(dtype).at(kComparedSteps - 1)));
    }
  }
}

// The gradients of one in 4,096 micro-batches underflow in float16 unless the loss is scaled.
TEST_F(TrainingParityTest, ScaledLossTrainsWhereFloat16WouldUnderflow) {
  testing::ProofRecord proof(
      {kSection,
       "decrease of the loss of tiny at each of 50 steps, amp_f16, gradients "
       "of loss / 4096",
       "LlamaForCausalLM with torch.amp.GradScaler", kDecreaseTolerance});
  constexpr int64_t micro_batches = 4096;
  const Curve expected = oracle("amp_f16_of_4096");
  const Curve losses = train(Dtype::amp_f16, kComparedSteps, Variant(), adamw(), micro_batches);
  proof.expect(decrease_error(losses, expected),
               fmt::format("from {} to {}, expected from {} to {}", losses.front(), losses.back(),
                           expected.front(), expected.back()));
}

// The comparisons above must be able to fail.
TEST_F(TrainingParityTest, AWrongBetaIsFound) {
  AdamWOptions wrong = adamw();
  wrong.beta2 = 0.99;
  const Curve losses = train(Dtype::f32, kComparedSteps, Variant(), wrong);
  const Curve expected = oracle(Dtype::f32);
  double largest = 0;
  for (size_t i = 0; i < losses.size(); ++i)
    largest = std::max(largest, std::abs(losses[i] - expected.at(i)));
  EXPECT_GT(largest, kFloat32Tolerance);
}

class DeterminismTest : public TrainingParityTest {};

// Two runs from the same seed, on the same number of threads: the same bits.
TEST_F(DeterminismTest, TwoRunsOfAVariantAreBitIdentical) {
  constexpr size_t steps = 5;
  for (const Variant& variant : runnable_variants(Dtype::f32, cpu_traits())) {
    testing::ProofRecord proof(
        {kSection,
         fmt::format("losses of 5 steps of tiny that differ between two runs, f32, {}",
                     variant.name()),
         "the same program again", 0});
    const Curve first = train(Dtype::f32, steps, variant, adamw());
    const Curve second = train(Dtype::f32, steps, variant, adamw());
    int64_t different = 0;
    for (size_t i = 0; i < steps; ++i) different += first[i] != second[i];
    proof.expect_none_wrong(static_cast<int64_t>(steps), different, variant.name());
  }
}

}  // namespace
}  // namespace tinyllama

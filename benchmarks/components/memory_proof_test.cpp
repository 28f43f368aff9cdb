// Predicted weights, gradients, optimiser state and activations against the allocator's count of
// live bytes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/proof_grid.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/testing.hpp"
#include "model/proof_record.hpp"
#include "model/train_step.hpp"

namespace tinyllama::components {
namespace {

// At the peak some temporaries of backward live whose order libtorch chooses.
constexpr double kPeakTolerance = 0.05;
// Of the sizes, those at which every variant is replayed.
constexpr size_t kVariantStride = 4;

using testing::GridPoint;
using testing::proof_grid;
using tinyllama::testing::ProofRecord;

int64_t live_bytes() {
  return instruments::host_allocator::read().live_bytes;
}

// Bytes that `make` leaves alive.
template <typename Make>
int64_t bytes_of(Make make) {
  const int64_t before = live_bytes();
  make();
  return live_bytes() - before;
}

class MemoryProofTest : public ::testing::TestWithParam<Dtype> {
 protected:
  template <typename Check>
  static void on_the_grid(Check check) {
    const auto grid = proof_grid();
    for (size_t i = 0; i < grid.size(); ++i) {
      const GridPoint& point = grid[i];
      if (!point.is_small()) continue;
      for (const Variant& variant : testing::variants_at(i, GetParam(), kVariantStride)) {
        check(Workload{point.config, variant, GetParam(), point.batch, point.seq},
              fmt::format("{} at {}", variant.name(), point.name));
      }
    }
  }
  static tinyllama::testing::Claim claim(const char* what, double tolerance = 0) {
    return {"Memory", fmt::format("{}, {}", what, to_string(GetParam())),
            "live bytes of the suite's allocator", tolerance};
  }
};

TEST_P(MemoryProofTest, WeightsOptimizerStateAndGradientsOfTheStep) {
  ProofRecord proof(claim("bytes of weights, optimiser state, gradients"));
  on_the_grid([&](const Workload& w, const std::string& at) {
    const MemoryCost predicted = full_step_memory(w);
    TensorInitializer initializer(1, w.dtype, c10::kCPU);
    NamedTensors parameters;
    proof.expect_equal_counts(predicted.weights, bytes_of([&] {
                                parameters =
                                    TinyLlama(w.config, w.variant, w.seq, initializer).parameters();
                              }),
                              "weights, " + at);
    std::optional<AdamW> optimizer;
    proof.expect_equal_counts(predicted.optimizer_state,
                              bytes_of([&] { optimizer.emplace(parameters, w.variant); }),
                              "optimiser state, " + at);
    const TinyLlama model(w.config, w.variant, w.seq, initializer);
    const TokenBatch batch = random_token_batch(w.config, w.batch, w.seq, initializer);
    AdamW of_model(model.parameters(), w.variant);
    TrainStep step(model, of_model);
    proof.expect_equal_counts(predicted.gradients,
                              bytes_of([&] { step.backward(step.forward(batch)); }),
                              "gradients, " + at);
  });
}

TEST_P(MemoryProofTest, ActivationsOfTheStep) {
  ProofRecord proof(claim("bytes of activations of the step"));
  on_the_grid([&](const Workload& w, const std::string& at) {
    TensorInitializer initializer(1, w.dtype, c10::kCPU);
    const TinyLlama model(w.config, w.variant, w.seq, initializer);
    const TokenBatch batch = random_token_batch(w.config, w.batch, w.seq, initializer);
    AdamW optimizer(model.parameters(), w.variant);
    const TrainStep step(model, optimizer);
    at::Tensor loss;
    proof.expect_equal_counts(full_step_memory(w).activations,
                              bytes_of([&] { loss = step.forward(batch); }), at);
  });
}

TEST_P(MemoryProofTest, PartsOfEveryComponent) {
  ProofRecord proof(claim("bytes of weights, inputs, activations of every component"));
  const auto components = all();
  on_the_grid([&](const Workload& w, const std::string& at) {
    for (const auto& component : components) {
      const bool has_forward = std::find(component.passes.begin(), component.passes.end(),
                                         Pass::forward) != component.passes.end();
      if (!has_forward) continue;
      const MemoryCost predicted = component.memory(w, Pass::forward);
      std::unique_ptr<harness::WorkItem> item;
      proof.expect_equal_counts(predicted.weights + predicted.inputs, bytes_of([&] {
                                  item = component.build({w, Pass::forward, 42, c10::kCPU});
                                }),
                                fmt::format("weights and inputs of {}, {}", component.name, at));
      item->prepare();
      proof.expect_equal_counts(predicted.activations, bytes_of([&] { item->run(); }),
                                fmt::format("activations of {}, {}", component.name, at));
    }
  });
}

TEST_P(MemoryProofTest, PeakOfTheStep) {
  ProofRecord proof(claim("peak bytes of the step", kPeakTolerance));
  const auto cpu = instruments::Device::select("cpu");
  on_the_grid([&](const Workload& w, const std::string& at) {
    // A scaled loss that overflows at the first step leaves the update, and its lists, out.
    if (w.dtype == Dtype::amp_f16 && w.variant.has(Switch::foreach_adamw)) return;
    const int64_t foreign = live_bytes();
    const auto item = full_step().build({w, Pass::train, 42, c10::kCPU});
    proof.expect_equal_counts(full_step_memory(w).peak(),
                              harness::meter(cpu, *item, foreign).peak_bytes, at);
  });
}

INSTANTIATE_TEST_SUITE_P(All, MemoryProofTest, ::testing::ValuesIn(benchmark_dtypes()),
                         [](const auto& dtype) { return std::string(to_string(dtype.param)); });

}  // namespace
}  // namespace tinyllama::components

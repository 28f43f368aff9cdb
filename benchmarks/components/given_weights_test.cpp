// Components with weights of a folder instead of drawn ones.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <memory>

#include "benchmarks/components/components.hpp"
#include "benchmarks/harness/parity_gate.hpp"
#include "benchmarks/harness/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::components {
namespace {

constexpr uint64_t kSeed = 42;

// Weights with all the digits of float32: bfloat16 and float16 have to round them. Tensors whose
// names begin with `doubled` hold twice as much.
NamedTensors drawn_weights(const std::string& doubled = "nothing") {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  NamedTensors all;
  for (const auto& [name, shape] : parameter_shapes(harness::testing::small_config())) {
    const double mean = shape.size() == 1 ? 1.0 : 0.0;
    at::Tensor values = at::empty(shape).normal_(mean, 0.1, generator);
    all.emplace_back(name, name.starts_with(doubled) ? values * 2 : values);
  }
  return all;
}

class GivenWeightsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Weights> save(const char* folder, const NamedTensors& tensors) const {
    save_weights(folder_ / folder, harness::testing::small_config(), tensors);
    return std::make_unique<Weights>(folder_ / folder);
  }
  // What an iteration computes.
  NamedTensors results(const harness::Case& test_case, const Weights* weights) const {
    const auto item = test_case.component->build(
        {test_case.workload, test_case.pass, kSeed, cpu_.torch(), weights});
    item->prepare();
    item->run();
    return item->results();
  }
  // The largest pass, which computes everything.
  static harness::Case last_case(const harness::Component& component) {
    return harness::testing::small_case(component, component.passes.back(), Dtype::f32);
  }
  static bool same(const NamedTensors& a, const NamedTensors& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (!at::equal(a[i].second, b[i].second)) return false;
    }
    return a.size() == b.size();
  }

  harness::testing::TemporaryFolder folder_;
  instruments::Device cpu_ = instruments::Device::select("cpu");
};

TEST_F(GivenWeightsTest, PassTheGateInEveryType) {
  const auto weights = save("weights", drawn_weights());
  for (const auto& component : all()) {
    // One gate, so that references of one type must not serve another.
    harness::ParityGate gate(cpu_, kSeed, 1e12, weights.get());
    for (const Dtype dtype : benchmark_dtypes()) {
      for (const Pass pass : component.passes) {
        const harness::Case test_case = harness::testing::small_case(component, pass, dtype);
        const auto comparison =
            gate.check(test_case, test_case.workload.batch, results(test_case, weights.get()));
        EXPECT_TRUE(comparison.passes()) << test_case.name() << comparison.failure(dtype);
        EXPECT_EQ(comparison.unprovable, "") << test_case.name();
      }
    }
  }
}

TEST_F(GivenWeightsTest, AreComparedAsRoundedToTheCasesType) {
  const auto weights = save("weights", drawn_weights());
  harness::ParityGate gate(cpu_, kSeed, 1e12, weights.get());
  const harness::Component component = embedding();
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f32}) {
    const harness::Case test_case = harness::testing::small_case(component, Pass::forward, dtype);
    const auto comparison =
        gate.check(test_case, test_case.workload.batch, results(test_case, weights.get()));
    EXPECT_EQ(comparison.max_rel_error, 0) << "a look-up rounds nothing: " << test_case.name();
  }
}

TEST_F(GivenWeightsTest, ReplaceTheDrawnOnesInEveryComponentThatHasSome) {
  const auto weights = save("weights", drawn_weights());
  for (const auto& component : all()) {
    const harness::Case test_case = last_case(component);
    const bool has_weights = test_case.cost().parameters > 0;
    EXPECT_EQ(same(results(test_case, weights.get()), results(test_case, nullptr)), !has_weights)
        << component.name;
  }
}

TEST_F(GivenWeightsTest, ComponentsOfOneLayerTakeTheFirst) {
  const auto plain = save("plain", drawn_weights());
  const auto first = save("first", drawn_weights("model.layers.0."));
  const auto second = save("second", drawn_weights("model.layers.1."));
  for (const auto& component : {rms_norm(), attention(), feed_forward(), block()}) {
    const harness::Case test_case = last_case(component);
    const NamedTensors expected = results(test_case, plain.get());
    EXPECT_TRUE(same(results(test_case, second.get()), expected)) << component.name;
    EXPECT_FALSE(same(results(test_case, first.get()), expected)) << component.name;
  }
  const harness::Component whole = model();
  EXPECT_FALSE(
      same(results(last_case(whole), second.get()), results(last_case(whole), plain.get())));
}

}  // namespace
}  // namespace tinyllama::components

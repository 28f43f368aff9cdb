// Every component in every pass and dtype: it runs, again and again, and the gate proves it.
#include "benchmarks/components/components.hpp"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ostream>
#include <set>

#include "benchmarks/harness/gate_run.hpp"
#include "benchmarks/harness/parity_gate.hpp"
#include "benchmarks/harness/testing.hpp"
#include "model/train_step.hpp"
#include "model/variant.hpp"

namespace tinyllama::components {
namespace {

constexpr uint64_t kSeed = 42;

struct Point {
  std::string component;
  Pass pass;
  Dtype dtype;
  Variant variant;
};

void PrintTo(const Point& point, std::ostream* out) {
  *out << point.component << " " << to_string(point.pass) << " " << to_string(point.dtype) << " "
       << point.variant.name();
}

// Variants that change something in the component and can run here.
std::vector<Variant> variants_of(const harness::Component& component, Pass pass, Dtype dtype) {
  std::vector<Variant> variants;
  const auto test_case = harness::testing::small_case(component, pass, dtype);
  Workload workload = test_case.workload;
  for (const Variant& variant : runnable_variants(dtype, cpu_traits())) {
    workload.variant = variant;
    const bool changes = variant.is_baseline() || variant.changes(component.parts);
    const bool refused = component.refusal && !component.refusal(workload, pass).empty();
    if (changes && !refused) variants.push_back(variant);
  }
  return variants;
}

std::vector<Point> points() {
  std::vector<Point> result;
  for (const auto& component : all()) {
    for (const Pass pass : component.passes) {
      for (const Dtype dtype : benchmark_dtypes()) {
        for (const Variant& variant : variants_of(component, pass, dtype))
          result.push_back({component.name, pass, dtype, variant});
      }
    }
  }
  return result;
}

class ComponentsTest : public ::testing::TestWithParam<Point> {
 protected:
  void SetUp() override {
    for (auto& component : all()) {
      if (component.name == GetParam().component) chosen = std::move(component);
    }
    test_case = harness::testing::small_case(chosen, GetParam().pass, GetParam().dtype);
    test_case->workload.variant = GetParam().variant;
    item = chosen.build({test_case->workload, test_case->pass, kSeed, cpu.torch()});
  }
  instruments::Device cpu = instruments::Device::select("cpu");
  harness::Component chosen;
  std::optional<harness::Case> test_case;  // set by SetUp, for it has no default
  std::unique_ptr<harness::WorkItem> item;
};

TEST_P(ComponentsTest, PassesTheGate) {
  item->prepare();
  item->run();
  harness::ParityGate gate(cpu, kSeed, 1e12);
  const auto comparison = gate.check(*test_case, test_case->workload.batch, item->results());
  EXPECT_GT(comparison.compared_tensors, 0);
  const Dtype dtype = GetParam().dtype;
  // Two layers of float16 lose small gradients where nothing scales the loss.
  if (compute_type(dtype) == c10::ScalarType::Half && !comparison.unprovable.empty())
    GTEST_SKIP() << comparison.unprovable;
  EXPECT_EQ(comparison.unprovable, "");
  EXPECT_TRUE(comparison.passes()) << comparison.failure(dtype);
  // Whole models of eight hidden units are far noisier than any that is timed.
  if (GetParam().component == "model" || GetParam().component == "full_step") return;
  // What weights as they are drawn are allowed is no more than twice what once were constants: of
  // eight hidden units gradients of attention cancel more than those of any size that is timed.
  const double most = dtype == Dtype::f32                                ? 2e-5
                      : compute_type(dtype) == c10::ScalarType::BFloat16 ? 5e-2
                                                                         : 1e-2;
  NamedTensors results = item->results();
  int refused = 0;
  for (auto& [name, tensor] : results) {
    const at::Tensor right = tensor;
    tensor = right * -1;
    const auto wrong = gate.check(*test_case, test_case->workload.batch, results);
    // a gradient that is 0 is as right with the other sign
    if (!wrong.passes()) {
      ++refused;
      EXPECT_LE(wrong.allowed, 2 * most) << wrong.worst_tensor;
    }
    tensor = right;
  }
  EXPECT_GT(refused, 0);
}

// After several iterations, whose state is then put back; and of a batch that is two copies.
TEST_P(ComponentsTest, PassesTheGateWithNewInputsAtTheSameAddresses) {
  Workload twice = test_case->workload;
  twice.batch = 4;
  for (const Workload& workload : {test_case->workload, twice}) {
    item = chosen.build({workload, test_case->pass, kSeed, cpu.torch()});
    for (int i = 0; i < 2; ++i) {
      item->prepare();
      item->run();
    }
    harness::change_inputs(*item, harness::ParityGate::kChangedSeed, 2);
    const NamedTensors givens = harness::copies_of(item->givens());
    const NamedTensors results = harness::run_for_gate(cpu, *item).results;
    harness::ParityGate gate(cpu, kSeed, 1e12);
    const auto comparison = gate.check_changed(*test_case, workload.batch, results);
    if (compute_type(workload.dtype) == c10::ScalarType::Half && !comparison.unprovable.empty())
      GTEST_SKIP() << comparison.unprovable;
    EXPECT_EQ(comparison.unprovable, "");
    EXPECT_TRUE(comparison.passes()) << comparison.failure(workload.dtype);
    EXPECT_EQ(harness::first_changed(item->givens(), givens), "");
    // The weights that a checkpointed block computes with again are not in the graph.
    if (!has_backward(test_case->pass) && !workload.variant.has(Switch::checkpoint)) {
      EXPECT_EQ(item->without_gradient(), std::vector<std::string>());
    }
  }
}

TEST_P(ComponentsTest, RunsAgain) {
  item->prepare();
  item->run();
  NamedTensors before;
  for (const auto& [name, tensor] : item->results()) before.emplace_back(name, tensor.clone());
  item->prepare();
  item->run();
  const NamedTensors after = item->results();
  ASSERT_EQ(after.size(), before.size());
  // Training moves on from step to step; everything else computes the same again.
  const bool updates = test_case->pass == Pass::update || test_case->pass == Pass::train;
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].first, before[i].first);
    EXPECT_TRUE(after[i].second.isfinite().all().item<bool>()) << after[i].first;
    if (!updates) {
      EXPECT_TRUE(at::equal(after[i].second, before[i].second)) << after[i].first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ComponentsTest, ::testing::ValuesIn(points()),
                         ::tinyllama::testing::kNamedByParameter);

// Rows of the embedding that the batch lacks get no gradient: left alone, their first moments are
// denormal numbers after some 785 steps.
TEST(FullStepTest, MomentsStayNormalNumbersHoweverManyStepsAreTimed) {
  constexpr double smallest_normal = 0x1p-126;
  const harness::Component component = full_step();
  const auto test_case = harness::testing::small_case(component, Pass::train);
  const auto item = component.build({test_case.workload, test_case.pass, kSeed, at::kCPU});
  for (int step = 0; step < 850; ++step) {
    item->prepare();
    item->run();
  }
  for (const auto& [name, tensor] : item->results()) {
    const at::Tensor sizes = tensor.abs();
    EXPECT_FALSE(sizes.gt(0).logical_and(sizes.lt(smallest_normal)).any().item<bool>()) << name;
  }
}

TEST(StepClosureTest, NamesComponentsAndPassesThatExist) {
  const ModelConfig config = harness::testing::small_config();
  const auto components = all();
  const auto find = [&](const std::string& name) {
    return std::find_if(components.begin(), components.end(),
                        [&](const auto& component) { return component.name == name; });
  };
  EXPECT_NE(find(parts_of_step().whole), components.end());
  // Together the parts do the work of the whole, neither more nor less.
  const Workload workload{config, Variant(), Dtype::f32, 2, 4};
  Cost sum;
  int64_t parameters = 0;
  for (const auto& part : parts_of_step().parts(config)) {
    const auto component = find(part.component);
    ASSERT_NE(component, components.end()) << part.component;
    EXPECT_NE(std::find(component->passes.begin(), component->passes.end(), part.pass),
              component->passes.end())
        << part.component;
    const Cost cost = part.count * component->cost(workload, part.pass);
    sum += cost;
    if (part.pass != Pass::update) parameters += cost.parameters;
  }
  const Cost step = full_step_cost(workload);
  EXPECT_EQ(sum.model_flops, step.model_flops);
  EXPECT_EQ(sum.elementwise_flops, step.elementwise_flops);
  EXPECT_EQ(sum.bytes, step.bytes);
  EXPECT_EQ(parameters, count_parameters(config));
}

}  // namespace
}  // namespace tinyllama::components

// The gate as an adversary of the components: it refuses what is wrong, and nothing that is right,
// with weights as they are drawn, with hot ones, whose rounding errors are ten times as large, and
// with those of a folder.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <ostream>

#include "benchmarks/components/components.hpp"
#include "benchmarks/harness/parity_gate.hpp"
#include "benchmarks/harness/testing.hpp"
#include "model/weights.hpp"

namespace tinyllama::components {
namespace {

constexpr uint64_t kSeed = 42;

ModelConfig hot_config() {
  return ModelConfig({.vocab_size = 300,
                      .hidden_dim = 64,
                      .n_layers = 2,
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .intermediate_dim = 96});
}

// Of N(0, std^2), where LLaMA draws N(0, 0.02^2), with all the digits of float32, which bfloat16
// and float16 have to round. Tensors whose names begin with `doubled` hold twice as much.
NamedTensors weights_of(const ModelConfig& config, double std,
                        const std::string& doubled = "nothing") {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  NamedTensors all;
  for (const auto& [name, shape] : parameter_shapes(config)) {
    const double mean = shape.size() == 1 ? 1.0 : 0.0;
    const at::Tensor values = at::empty(shape).normal_(mean, std, generator);
    all.emplace_back(name, name.starts_with(doubled) ? values * 2 : values);
  }
  return all;
}

class GateTest : public ::testing::Test {
 protected:
  std::unique_ptr<Weights> save(const char* folder, const ModelConfig& config,
                                const NamedTensors& tensors) const {
    save_weights(folder_ / folder, config, tensors);
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
  // What the gate says of a case as it is, or of its results after `change`.
  harness::Comparison check(
      const harness::Case& test_case, const Weights* weights = nullptr,
      const std::function<void(NamedTensors&)>& change = [](NamedTensors&) {}) const {
    NamedTensors results = this->results(test_case, weights);
    change(results);
    harness::ParityGate gate(cpu_, kSeed, 1e12, weights);
    return gate.check(test_case, test_case.workload.batch, results);
  }
  static void expect_proved(const harness::Comparison& comparison, const harness::Case& test_case) {
    EXPECT_EQ(comparison.unprovable, "") << test_case.name();
    EXPECT_TRUE(comparison.passes())
        << test_case.name() << ": " << comparison.failure(test_case.workload.dtype);
  }

  instruments::Device cpu_ = instruments::Device::select("cpu");
  harness::testing::TemporaryFolder folder_;
};

TEST_F(GateTest, HotWeightsAreProvedThoughRoundingMovesThemFar) {
  const auto weights = save("hot", hot_config(), weights_of(hot_config(), 0.2));
  double largest_bf16_error = 0;
  for (const auto& component : {model(), full_step()}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::amp_bf16}) {
      for (const Variant& variant : {Variant(), Variant::parse("fused")}) {
        const harness::Case test_case{
            &component, component.passes.back(), "hot", {hot_config(), variant, dtype, 2, 32}, ""};
        const auto comparison = check(test_case, weights.get());
        expect_proved(comparison, test_case);
        if (dtype == Dtype::bf16)
          largest_bf16_error = std::max(largest_bf16_error, comparison.max_rel_error);
      }
    }
  }
  EXPECT_GT(largest_bf16_error, 0.05) << "weights that are not hot prove nothing here";
}

TEST_F(GateTest, NoiseAroundAZeroGradientPassesAndAWrongValueDoesNot) {
  const auto spoil = [](NamedTensors& results) {
    at::Tensor value;
    for (const auto& [name, tensor] : results) {
      if (name.ends_with("v_proj.weight") && name.starts_with("gradient of ")) value = tensor;
    }
    for (auto& [name, tensor] : results) {
      if (name.ends_with("q_proj.weight") && name.starts_with("gradient of "))
        tensor = at::ones_like(tensor) * (0.2 * value.abs().max());
    }
  };
  // One token attends to itself alone, whatever q and k are; of two, one is trained.
  for (const auto& [component, seq] : {std::pair(attention(), 1), std::pair(full_step(), 2)}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::amp_bf16}) {
      for (const char* name : {"baseline", "sdpa", "fused"}) {
        const harness::Case test_case{&component,
                                      component.passes.back(),
                                      "short",
                                      {hot_config(), Variant::parse(name), dtype, 2, seq},
                                      ""};
        expect_proved(check(test_case), test_case);
        EXPECT_FALSE(check(test_case, nullptr, spoil).passes()) << test_case.name();
      }
    }
  }
}

TEST_F(GateTest, AForwardOfOneTokenIsProvedThoughItHasNoLoss) {
  const harness::Component component = model();
  const harness::Case test_case{
      &component, Pass::forward, "short", {hot_config(), Variant(), Dtype::f32, 2, 1}, ""};
  expect_proved(check(test_case), test_case);
}

// At scale 65,536 the gradients of one trained token overflow, and the step skips its update.
TEST_F(GateTest, AStepThatOverflowsFloat16SaysSo) {
  const harness::Component component = full_step();
  const harness::Case test_case{
      &component, Pass::train, "short", {hot_config(), Variant(), Dtype::amp_f16, 2, 2}, ""};
  const auto comparison = check(test_case);
  EXPECT_CONTAINS(comparison.unprovable, "cannot be proved: ");
  EXPECT_CONTAINS(comparison.unprovable, "not finite where every operator rounds to f16");
}

// --- weights of a folder ---

class GivenWeightsTest : public GateTest {
 protected:
  std::unique_ptr<Weights> drawn(const char* folder, const std::string& doubled = "nothing") const {
    const ModelConfig config = harness::testing::small_config();
    return save(folder, config, weights_of(config, 0.1, doubled));
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
};

TEST_F(GivenWeightsTest, PassTheGateInEveryType) {
  const auto weights = drawn("weights");
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
  const auto weights = drawn("weights");
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
  const auto weights = drawn("weights");
  for (const auto& component : all()) {
    const harness::Case test_case = last_case(component);
    const bool has_weights = test_case.cost().parameters > 0;
    EXPECT_EQ(same(results(test_case, weights.get()), results(test_case, nullptr)), !has_weights)
        << component.name;
  }
}

TEST_F(GivenWeightsTest, ComponentsOfOneLayerTakeTheFirst) {
  const auto plain = drawn("plain");
  const auto first = drawn("first", "model.layers.0.");
  const auto second = drawn("second", "model.layers.1.");
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

// --- planted faults ---

struct Plant {
  std::string fault;
  Dtype dtype;
  double weight_std;
};

void PrintTo(const Plant& plant, std::ostream* out) {
  *out << plant.fault << " " << to_string(plant.dtype) << " "
       << (plant.weight_std > 0.3 ? "hot" : "drawn");
}

// One head of causal attention over normalized inputs x [B, S, D], written out here so that a
// variant can have a fault and the baseline none.
at::Tensor attend(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                  const std::string& fault) {
  const int64_t S = x.size(1);
  const int64_t D = x.size(2);
  const auto wide = x.to(at_least_float(x.scalar_type()));
  const at::Tensor mean_square = wide.pow(2).mean(-1, /*keepdim=*/true);
  const double eps = fault == "no_eps" ? 0.0 : 1e-5;
  const at::Tensor normalized = (wide * at::rsqrt(mean_square + eps)).to(x.scalar_type());
  const at::Tensor q = at::linear(normalized, weights[0]);
  const at::Tensor k = at::linear(normalized, weights[1]);
  const bool loses_term = fault == "gradient_term_missing";
  const at::Tensor v = at::linear(loses_term ? normalized.detach() : normalized, weights[2]);
  const double width = static_cast<double>(D);
  at::Tensor scores = at::bmm(q, k.transpose(1, 2)) *
                      (fault == "wrong_score_scale" ? 1 / width : 1 / std::sqrt(width));
  if (fault != "no_mask") {
    scores = scores +
             at::full({S, S}, -std::numeric_limits<double>::infinity(), scores.options()).triu(1);
  }
  const at::Tensor shares = at::softmax(scores, -1, at_least_float(scores.scalar_type()));
  at::Tensor y = at::bmm(shares.to(v.scalar_type()), v);
  if (fault == "output_scaled") y = y * 1.25;
  at::Tensor change = at::ones_like(y).detach();
  if (fault == "last_row_missing") change.select(1, S - 1).zero_();
  if (fault == "one_element_wrong") {
    const int64_t at = y.detach().abs().argmax().item<int64_t>();
    change.view({-1})[at] = 0.5;
  }
  return y * change;
}

harness::Component faulty(const std::string& fault, double weight_std) {
  harness::Component component = harness::testing::linear_component();
  component.name = "planted";
  component.build = [=](const harness::BuildRequest& request) {
    const Workload& w = request.workload;
    const int64_t D = w.config.hidden_dim();
    TensorInitializer initializer(request.seed, w.dtype, request.device);
    NamedTensors parameters;
    std::vector<at::Tensor> weights;
    for (const char* name : {"q", "k", "v"}) {
      weights.push_back(initializer.normal_parameter({D, D}, weight_std));
      parameters.emplace_back(name, weights.back());
    }
    // as small as eps needs to be seen, and exact in every type
    const at::Tensor x = (initializer.normal({w.batch, w.seq, D}) * 0x1p-8).requires_grad_(true);
    std::vector<at::Tensor> gradients;
    if (has_backward(request.pass))
      gradients = {initializer.normal(x.sizes()).to(compute_type(w.dtype))};
    const std::string planted = w.variant.is_baseline() ? "none" : fault;
    const auto forward = [=] { return NamedTensors{{"output", attend(x, weights, planted)}}; };
    return std::make_unique<harness::LayerWork>(
        harness::Layer{{{"x", x}}, parameters, forward, gradients}, request.pass, w.dtype,
        request.device.type());
  };
  return component;
}

class PlantedFaultTest : public GateTest, public ::testing::WithParamInterface<Plant> {
 protected:
  harness::Comparison check_plant() const {
    const auto& [fault, dtype, weight_std] = GetParam();
    const harness::Component component = faulty(fault, weight_std);
    return check({&component,
                  Pass::forward_backward,
                  "planted",
                  {hot_config(), Variant::parse("qkv"), dtype, 2, 17},
                  ""});
  }
};

TEST_P(PlantedFaultTest, IsRefusedAndOnlyThen) {
  const auto comparison = check_plant();
  EXPECT_EQ(comparison.unprovable, "");
  EXPECT_EQ(comparison.passes(), GetParam().fault == "none")
      << comparison.failure(GetParam().dtype);
}

std::vector<Plant> plants() {
  std::vector<Plant> all;
  for (const char* fault :
       {"none", "no_mask", "wrong_score_scale", "no_eps", "gradient_term_missing",
        "last_row_missing", "one_element_wrong", "output_scaled"}) {
    for (const Dtype dtype : benchmark_dtypes()) {
      for (const double weight_std : {0.125, 0.5}) all.push_back({fault, dtype, weight_std});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, PlantedFaultTest, ::testing::ValuesIn(plants()),
                         ::tinyllama::testing::kNamedByParameter);

}  // namespace
}  // namespace tinyllama::components

// Operators of the dispatcher in slots: how they are found and refused, what their backward is
// given, and that a model calls them. tests/cli/test_plugins.py has those of real libraries.
#include "model/slots.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <map>
#include <tuple>
#include <vector>

#include "model/kernels/kernels.hpp"
#include "model/loss.hpp"
#include "model/plugin.hpp"
#include "model/testing.hpp"
#include "model/train_step.hpp"
#include "model/variant.hpp"

namespace tinyllama {
namespace {

using at::Tensor;

// What operators were last given, and how often each was called.
struct Calls {
  std::map<std::string, int> count;
  std::vector<Tensor> tensors;
  double eps = 0;
  int64_t ignore_index = 0;
};

Calls& calls() {
  static Calls one;
  return one;
}

// The model's own operations, of ATen's operators, which have gradients.

Tensor normalized(const Tensor& x, const Tensor& weight, double eps) {
  return x * (x.pow(2).mean(-1, true) + eps).rsqrt() * weight;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  ++calls().count["rms_norm"];
  return normalized(x, weight, eps);
}

std::tuple<Tensor, Tensor> rms_norm_residual(const Tensor& residual, const Tensor& branch,
                                             const Tensor& weight, double eps) {
  ++calls().count["rms_norm_residual"];
  const Tensor sum = residual + branch;
  return {sum, normalized(sum, weight, eps)};
}

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  ++calls().count["rotary"];
  return kernels::rotate(x, cos.unsqueeze(1), sin.unsqueeze(1));
}

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  ++calls().count["causal_attention"];
  return kernels::causal_attention(q, k, v, scale);
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  ++calls().count["swiglu"];
  return at::silu(gate) * up;
}

Tensor linear(const Tensor& x, const Tensor& weight) {
  ++calls().count["linear"];
  return at::linear(x, weight);
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            int64_t ignore_index) {
  ++calls().count["linear_cross_entropy"];
  calls().ignore_index = ignore_index;
  return next_token_loss(at::linear(x, weight), targets);
}

void adamw_step_(at::TensorList parameters, at::TensorList gradients, at::TensorList exp_avgs,
                 at::TensorList exp_avg_sqs, int64_t step, double lr, double beta1, double beta2,
                 double eps, double weight_decay) {
  ++calls().count["adamw_step_"];
  kernels::adamw_(parameters, gradients, exp_avgs, exp_avg_sqs,
                  {lr, beta1, beta2, eps, weight_decay}, step);
}

// Gradients that no autograd would give: they tell what the backward was given.

std::tuple<Tensor, Tensor> tell_backward(double eps, const Tensor& output, const Tensor& gradient,
                                         const Tensor& weight, const Tensor& x) {
  calls().eps = eps;
  calls().tensors = {output, gradient, weight, x};
  return {2 * x, 3 * weight};
}

std::tuple<Tensor, Tensor, Tensor> tell_backward_of_two(const Tensor& normalized_gradient,
                                                        const Tensor& sum, const Tensor& normalized,
                                                        const Tensor& sum_gradient) {
  calls().tensors = {normalized_gradient, sum, normalized, sum_gradient};
  return {2 * sum, 3 * sum, sum.sum(at::IntArrayRef{0})};
}

std::tuple<Tensor, Tensor> tell_backward_of_loss(const Tensor& targets, int64_t ignore_index,
                                                 const Tensor& gradient, const Tensor& x,
                                                 const Tensor& weight) {
  calls().tensors = {targets, gradient};
  calls().ignore_index = ignore_index;
  return {2 * x, 3 * weight};
}

template <class Function>
auto composite(Function function) {
  return torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, function);
}

TORCH_LIBRARY_FRAGMENT(slots_test, library) {
  // names of arguments may differ
  library.def("rms_norm(Tensor hidden_states, Tensor gamma, float epsilon) -> Tensor",
              composite(rms_norm));
  library.def(
      "rms_norm_residual(Tensor residual, Tensor branch, Tensor weight, float eps) -> (Tensor, "
      "Tensor)",
      composite(rms_norm_residual));
  library.def("rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor", composite(rotary));
  library.def("causal_attention(Tensor q, Tensor k, Tensor v, float scale) -> Tensor",
              composite(causal_attention));
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor", composite(swiglu));
  library.def("linear(Tensor x, Tensor weight) -> Tensor", composite(linear));
  library.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, int ignore_index) -> Tensor",
      composite(linear_cross_entropy));
  library.def(
      "adamw_step_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] exp_avgs, "
      "Tensor(c!)[] exp_avg_sqs, int step, float lr, float beta1, float beta2, float eps, float "
      "weight_decay) -> ()",
      torch::dispatch(c10::DispatchKey::CPU, adamw_step_));
}

// With a backward beside each, which autograd does not know; of one also an overload.
TORCH_LIBRARY_FRAGMENT(slots_pair, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def(
      "rms_norm_backward(float eps, Tensor output, Tensor gradient, Tensor weight, Tensor x) -> "
      "(Tensor, Tensor)");
  library.def("rms_norm.fast(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def("rms_norm_backward.fast(Tensor gradient) -> (Tensor, Tensor)");
  library.def(
      "rms_norm_residual(Tensor residual, Tensor branch, Tensor weight, float eps) -> (Tensor, "
      "Tensor)");
  library.def(
      "rms_norm_residual_backward(Tensor normalized_gradient, Tensor sum, Tensor normalized, "
      "Tensor sum_gradient) -> (Tensor, Tensor, Tensor)");
  library.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor targets, int ignore_index) -> Tensor");
  library.def(
      "linear_cross_entropy_backward(Tensor targets, int ignore_index, Tensor gradient, Tensor x, "
      "Tensor weight) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(slots_pair, CPU, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("rms_norm_backward", tell_backward);
  library.impl("rms_norm.fast", rms_norm);
  library.impl("rms_norm_residual", rms_norm_residual);
  library.impl("rms_norm_residual_backward", tell_backward_of_two);
  library.impl("linear_cross_entropy", linear_cross_entropy);
  library.impl("linear_cross_entropy_backward", tell_backward_of_loss);
}
TORCH_LIBRARY_IMPL(slots_pair, Meta, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("rms_norm_backward", tell_backward);
  library.impl("rms_norm_residual", rms_norm_residual);
}

// Of schemas that are no slot's.
TORCH_LIBRARY_FRAGMENT(slots_bad, library) {
  library.def("rms_norm(Tensor x, Tensor weight) -> Tensor");
  library.def("rms_norm.int(Tensor x, Tensor weight, int eps) -> Tensor");
  library.def("rms_norm.optional(Tensor x, Tensor? weight, float eps) -> Tensor");
  library.def("rms_norm.more(Tensor x, Tensor weight, float eps, bool fast=False) -> Tensor");
  library.def("rms_norm.order(Tensor x, float eps, Tensor weight) -> Tensor");
  library.def("rms_norm.writes(Tensor(a!) x, Tensor weight, float eps) -> Tensor");
  library.def("rms_norm.two(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def("rms_norm.in_place(Tensor x, Tensor weight, float eps) -> Tensor(a!)");
  library.def(
      "adamw_step_(Tensor[] parameters, Tensor[] gradients, Tensor[] exp_avgs, Tensor[] "
      "exp_avg_sqs, int step, float lr, float beta1, float beta2, float eps, float weight_decay) "
      "-> ()");
}

// Of the slot's schema, and with a backward that is no slot's, or without.
TORCH_LIBRARY_FRAGMENT(slots_half, library) {
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  library.def("swiglu.unknown(Tensor gate, Tensor up) -> Tensor");
  library.def("swiglu_backward.unknown(Tensor gradient, Tensor sigmoid) -> (Tensor, Tensor)");
  library.def("swiglu.type(Tensor gate, Tensor up) -> Tensor");
  library.def("swiglu_backward.type(Tensor gradient, float up) -> (Tensor, Tensor)");
  library.def("swiglu.results(Tensor gate, Tensor up) -> Tensor");
  library.def("swiglu_backward.results(Tensor gradient, Tensor gate, Tensor up) -> Tensor");
}

std::string refusal(const std::string& name) {
  try {
    SlotOperator::find(name);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

std::string refusal_of_variant(const std::string& text) {
  try {
    Variant::parse(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).set_requires_grad(true);
}

bool is_close(const Tensor& a, const Tensor& b) {
  return at::allclose(a, b);
}

TEST(SlotNames, AreThoseOfOperatorsBehindTheirNamespace) {
  for (const Slot slot : all_slots()) {
    const std::string name(to_string(slot));
    EXPECT_TRUE(SlotOperator::is_name("my::" + name));
    EXPECT_TRUE(SlotOperator::is_name("my::" + name + ".fast"));
    EXPECT_FALSE(SlotOperator::is_name(name));
    EXPECT_FALSE(SlotOperator::is_name("::" + name));
    EXPECT_FALSE(SlotOperator::is_name("my::" + name + "_backward"));
    EXPECT_TRUE(schema_of(slot).starts_with(name + "("));
    // their schemas are those that the table has: an operator of each is found
    EXPECT_EQ(SlotOperator::find("slots_test::" + name).slot(), slot);
  }
  EXPECT_EQ(all_slots().size(), 8U);
}

TEST(SlotOperators, AreRefusedByTheirNames) {
  EXPECT_CONTAINS(refusal("slots_test::layer_norm"), "fills no slot");
  EXPECT_CONTAINS(refusal("slots_test::layer_norm"), "rms_norm, rms_norm_residual, rotary");
  EXPECT_CONTAINS(refusal("rms_norm"), "fills no slot");
  EXPECT_CONTAINS(refusal("slots_absent::rms_norm"), "is not registered");
  EXPECT_CONTAINS(refusal("slots_test::rms_norm.absent"), "is not registered");
}

TEST(SlotOperators, AreRefusedForAnotherSchema) {
  for (const std::string overload :
       {"", ".int", ".optional", ".more", ".order", ".writes", ".two", ".in_place"}) {
    const std::string said = refusal("slots_bad::rms_norm" + overload);
    EXPECT_CONTAINS(said, "its schema is slots_bad::rms_norm" + overload + "(Tensor");
    EXPECT_CONTAINS(said, "the slot's is " + std::string(schema_of(Slot::rms_norm)));
  }
  // what it writes to is part of it
  EXPECT_CONTAINS(refusal("slots_bad::adamw_step_"), "its schema is slots_bad::adamw_step_(Tensor");
}

TEST(SlotOperators, AreRefusedWithoutGradients) {
  EXPECT_CONTAINS(refusal("slots_half::swiglu"), "has no gradients");
  EXPECT_CONTAINS(refusal("slots_half::swiglu"), "slots_half::swiglu_backward");
  const std::string unknown = refusal("slots_half::swiglu.unknown");
  EXPECT_CONTAINS(unknown, "its argument 'sigmoid' of type Tensor is none of the slot's");
  EXPECT_CONTAINS(unknown, "may ask for gradient, gate, up, output");
  EXPECT_CONTAINS(refusal("slots_half::swiglu.type"), "its argument 'up' of type float");
  EXPECT_CONTAINS(refusal("slots_half::swiglu.results"), "must return a Tensor for each of the");
  // the optimizer's update is not differentiated
  EXPECT_EQ(refusal("slots_test::adamw_step_"), "");
}

TEST(SlotOperators, SayWhereTheyRun) {
  const auto own = SlotOperator::find("slots_test::rms_norm");
  EXPECT_EQ(own.refuse_device(c10::kCPU), "");
  EXPECT_EQ(own.refuse_device(c10::kCUDA), "");
  EXPECT_FALSE(own.has_meta_kernel());
  const auto pair = SlotOperator::find("slots_pair::rms_norm");
  EXPECT_EQ(pair.refuse_device(c10::kCPU), "");
  EXPECT_EQ(pair.refuse_device(c10::kCUDA), "slots_pair::rms_norm: has no CUDA kernel");
  EXPECT_TRUE(pair.has_meta_kernel());
  const auto half = SlotOperator::find("slots_pair::rms_norm.fast");
  EXPECT_EQ(half.refuse_device(c10::kCPU),
            "slots_pair::rms_norm.fast: its backward has no CPU kernel");
  EXPECT_FALSE(half.has_meta_kernel());
  // of its backward too
  EXPECT_FALSE(SlotOperator::find("slots_pair::rms_norm_residual").has_meta_kernel());
}

TEST(SlotGradients, AreAutogradsOfACompositeOperator) {
  const Tensor x = leaf({2, 3, 4}), weight = leaf({4});
  const auto outputs = SlotOperator::find("slots_test::rms_norm")({x, weight, 1e-5});
  ASSERT_EQ(outputs.size(), 1U);
  outputs.front().pow(2).sum().backward();
  const Tensor x2 = x.detach().clone().set_requires_grad(true);
  const Tensor weight2 = weight.detach().clone().set_requires_grad(true);
  normalized(x2, weight2, 1e-5).pow(2).sum().backward();
  EXPECT_TRUE(is_close(x.grad(), x2.grad()));
  EXPECT_TRUE(is_close(weight.grad(), weight2.grad()));
}

TEST(SlotGradients, AreThoseOfTheBackwardWhichGetsItsArgumentsByName) {
  const Tensor x = leaf({2, 3, 4}), weight = leaf({4});
  const Tensor output = SlotOperator::find("slots_pair::rms_norm")({x, weight, 0.25}).front();
  EXPECT_TRUE(is_close(output, normalized(x, weight, 0.25)));
  const Tensor gradient = at::randn({2, 3, 4}, at::kDouble);
  calls() = {};
  output.backward(gradient);
  ASSERT_EQ(calls().tensors.size(), 4U);
  EXPECT_TRUE(is_close(calls().tensors[0], output));
  EXPECT_TRUE(is_close(calls().tensors[1], gradient));
  EXPECT_TRUE(is_close(calls().tensors[2], weight));
  EXPECT_TRUE(is_close(calls().tensors[3], x));
  EXPECT_EQ(calls().eps, 0.25);
  EXPECT_TRUE(is_close(x.grad(), 2 * x));
  EXPECT_TRUE(is_close(weight.grad(), 3 * weight));
}

TEST(SlotGradients, OfTwoOutputsHaveAGradientEach) {
  const Tensor residual = leaf({3, 4}), branch = leaf({3, 4}), weight = leaf({4});
  const auto op = SlotOperator::find("slots_pair::rms_norm_residual");
  auto outputs = op({residual, branch, weight, 1e-5});
  ASSERT_EQ(outputs.size(), 2U);
  calls() = {};
  (2 * outputs[0].sum() + 5 * outputs[1].sum()).backward();
  ASSERT_EQ(calls().tensors.size(), 4U);
  EXPECT_TRUE(is_close(calls().tensors[0], at::full({3, 4}, 5, at::kDouble)));
  EXPECT_TRUE(is_close(calls().tensors[1], outputs[0]));
  EXPECT_TRUE(is_close(calls().tensors[2], outputs[1]));
  EXPECT_TRUE(is_close(calls().tensors[3], at::full({3, 4}, 2, at::kDouble)));
  EXPECT_TRUE(is_close(residual.grad(), 2 * outputs[0]));
  EXPECT_TRUE(is_close(branch.grad(), 3 * outputs[0]));
  EXPECT_TRUE(is_close(weight.grad(), outputs[0].sum(at::IntArrayRef{0})));
  // of an output that nothing was computed from, it is zero
  outputs = op({residual, branch, weight, 1e-5});
  outputs[1].sum().backward();
  EXPECT_TRUE(is_close(calls().tensors[3], at::zeros({3, 4}, at::kDouble)));
}

TEST(SlotGradients, KeepNumbersAndWhatHasNoGradient) {
  const Tensor x = leaf({2, 3, 4}), weight = leaf({5, 4});
  const Tensor targets = next_token_targets(at::ones({2, 3}, at::kLong));
  const auto op = SlotOperator::find("slots_pair::linear_cross_entropy");
  const Tensor loss = op({x, weight, targets, kIgnoredTarget}).front();
  calls() = {};
  (7 * loss).backward();
  ASSERT_EQ(calls().tensors.size(), 2U);
  EXPECT_TRUE(calls().tensors[0].equal(targets));
  EXPECT_EQ(calls().tensors[1].item<double>(), 7);
  EXPECT_EQ(calls().ignore_index, kIgnoredTarget);
  EXPECT_TRUE(is_close(x.grad(), 2 * x));
}

TEST(SlotGradients, AreNotRecordedWhereAutogradDoesNot) {
  const Tensor x = leaf({3, 4}), weight = leaf({4});
  for (const char* name : {"slots_test::rms_norm", "slots_pair::rms_norm"}) {
    const auto op = SlotOperator::find(name);
    EXPECT_TRUE(op({x, weight, 1e-5}).front().requires_grad());
    const at::NoGradGuard no_gradients;
    const Tensor output = op({x, weight, 1e-5}).front();
    EXPECT_FALSE(output.requires_grad());
    EXPECT_TRUE(is_close(output, normalized(x, weight, 1e-5)));
  }
  // nor of a weight that is not trained
  const Tensor frozen = weight.detach();
  SlotOperator::find("slots_pair::rms_norm")({x, frozen, 1e-5}).front().sum().backward();
  EXPECT_TRUE(is_close(x.grad(), 2 * x));
  EXPECT_FALSE(frozen.grad().defined());
}

Variant all_of_the_test() {
  Variant variant;
  for (const Slot slot : all_slots())
    variant = variant.with(SlotOperator::find("slots_test::" + std::string(to_string(slot))));
  return variant;
}

// Loss of the second step: every gradient and the update have a part in it.
double second_loss(const Variant& variant) {
  TensorInitializer initializer(42, Dtype::f64, c10::kCPU);
  const ModelConfig config = testing::small_config();
  const TinyLlama model(config, variant, 6, initializer);
  AdamW optimizer(model.parameters(), variant, {.learning_rate = 0.1});
  const TokenBatch batch = random_token_batch(config, 2, 6, initializer);
  TrainStep step(model, optimizer);
  step.run({&batch, 1});
  optimizer.clear_gradients();
  calls() = {};
  return step.run({&batch, 1}).item<double>();
}

TEST(FilledSlots, AreCalledByTheModelOnceAnOperation) {
  const double expected = second_loss(Variant());
  EXPECT_TRUE(calls().count.empty());
  EXPECT_NEAR(second_loss(all_of_the_test()), expected, 1e-9);
  const int L = 2;
  // a sum is normalised once a block, before the FFN; q, k, v, o, gate, up, down are linear
  const std::map<std::string, int> once = {
      {"rms_norm", L + 1}, {"rms_norm_residual", L},    {"rotary", 2 * L},
      {"swiglu", L},       {"causal_attention", L},     {"linear", 7 * L},
      {"adamw_step_", 1},  {"linear_cross_entropy", 1},
  };
  EXPECT_EQ(calls().count, once);
  EXPECT_EQ(calls().ignore_index, kIgnoredTarget);
  // a norm whose residual sum is the model's own is called for each
  const auto norm = Variant::parse("slots_test::rms_norm");
  EXPECT_NEAR(second_loss(norm), expected, 1e-9);
  EXPECT_EQ(calls().count, (std::map<std::string, int>{{"rms_norm", 2 * L + 1}}));
  // the forward of a block is computed again
  EXPECT_NEAR(second_loss(all_of_the_test().with(Switch::checkpoint)), expected, 1e-9);
  EXPECT_EQ(calls().count["swiglu"], 2 * L);
}

TEST(VariantsWithOperators, AreReadAsTheyAreNamed) {
  for (const std::string name :
       {"slots_test::rms_norm", "checkpoint+slots_test::rms_norm",
        "fused+slots_pair::rms_norm.fast", "optimized+slots_test::swiglu+slots_test::linear",
        "sdpa+slots_test::rms_norm+slots_test::adamw_step_"}) {
    const Variant variant = Variant::parse(name);
    EXPECT_EQ(variant.name(), name);
    EXPECT_FALSE(variant.is_baseline());
    EXPECT_EQ(variant.is_optimized(), name.starts_with("optimized"));
  }
  // in the order of slots, and behind the switches
  const Variant variant = Variant::parse("slots_test::swiglu+checkpoint+slots_test::rotary");
  EXPECT_EQ(variant.name(), "checkpoint+slots_test::rotary+slots_test::swiglu");
  EXPECT_EQ(variant.switch_names(), variant.name());
  EXPECT_EQ(variant.without_operators(), Variant({Switch::checkpoint}));
  EXPECT_EQ(variant.filling(Slot::rotary)->name(), "slots_test::rotary");
  EXPECT_EQ(variant.filling(Slot::linear), nullptr);
  EXPECT_NE(variant, Variant({Switch::checkpoint}));
  EXPECT_TRUE(variant.changes(Part::ffn));
  EXPECT_TRUE(variant.operators_change(Part::rotary | Part::norm));
  EXPECT_FALSE(variant.operators_change(Part::block | Part::norm));
}

TEST(VariantsWithOperators, RefuseTwoThatFillOneSlot) {
  EXPECT_CONTAINS(refusal_of_variant("slots_test::rms_norm+slots_pair::rms_norm"),
                  "slots_test::rms_norm and slots_pair::rms_norm both fill rms_norm");
  for (const auto& [switch_name, slot] :
       std::map<std::string, std::string>{{"fused_norm", "rms_norm"},
                                          {"fused_rotary", "rotary"},
                                          {"sdpa", "causal_attention"},
                                          {"fused_attention", "causal_attention"},
                                          {"fused_swiglu", "swiglu"},
                                          {"qkv", "linear"},
                                          {"gate_up", "linear"},
                                          {"tiled_gemm", "linear"},
                                          {"wide_gemm", "linear"},
                                          {"layout", "linear"},
                                          {"fused_loss", "linear_cross_entropy"},
                                          {"foreach_adamw", "adamw_step_"},
                                          {"fused_adamw", "adamw_step_"},
                                          {"library_adamw", "adamw_step_"},
                                          {"graph", "adamw_step_"}}) {
    const std::string op = "slots_test::" + slot;
    EXPECT_CONTAINS(refusal_of_variant(switch_name + "+" + op),
                    switch_name + " and " + op + " exclude each other: ");
    // but an operator that is added takes the switch's place
    const Variant replaced = Variant::parse(switch_name).with(SlotOperator::find(op));
    EXPECT_EQ(replaced.name(), op);
    EXPECT_EQ(replaced.contradiction(), "");
  }
  EXPECT_CONTAINS(refusal_of_variant("fused+slots_test::swiglu"), "fused_swiglu and");
  EXPECT_CONTAINS(refusal_of_variant("baseline+slots_test::swiglu"), "must be baseline, fused");
  EXPECT_CONTAINS(refusal_of_variant("optimized+qkv+slots_test::swiglu"), "beside optimized");
  const Variant first = Variant::parse("qkv+slots_test::rms_norm");
  EXPECT_EQ(first.with(SlotOperator::find("slots_pair::rms_norm")).name(),
            "qkv+slots_pair::rms_norm");
}

TEST(VariantsWithOperators, StandInTheOptimizedSetInPlaceOfItsSwitches) {
  for (const DeviceTraits& traits : processors_like(DeviceTraits())) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      const Variant variant = resolved(
          Variant::parse("optimized+slots_test::rms_norm+slots_test::linear"), dtype, traits);
      EXPECT_EQ(variant.name(), "optimized+slots_test::rms_norm+slots_test::linear");
      EXPECT_EQ(variant.contradiction(), "");
      EXPECT_EQ(refuse_variant(variant, dtype, traits), "");
      EXPECT_TRUE(variant.has(Switch::fused_adamw));
      for (const Switch gone : {Switch::fused_norm, Switch::qkv, Switch::gate_up,
                                Switch::tiled_gemm, Switch::wide_gemm})
        EXPECT_FALSE(variant.has(gone)) << to_string(gone);
    }
  }
}

TEST(VariantsWithOperators, AreRefusedOnADeviceWithoutKernel) {
  DeviceTraits gpu;
  gpu.is_gpu = true;
  const Variant variant = Variant::parse("slots_pair::rms_norm");
  EXPECT_EQ(refuse_variant(variant, Dtype::f32, DeviceTraits()), "");
  EXPECT_EQ(refuse_variant(variant, Dtype::f32, gpu), "slots_pair::rms_norm: has no CUDA kernel");
}

TEST(SetOfPlugins, IsTheNamesOfTheirOperators) {
  const std::vector<Plugin> plugins = {{"liba.so", "", {"a::rms_norm", "a::swiglu"}},
                                       {"libb.so", "", {"b::linear"}}};
  const std::string all = "a::rms_norm+a::swiglu+b::linear";
  EXPECT_EQ(with_operators_of(plugins, "plugin"), all);
  EXPECT_EQ(with_operators_of(plugins, "optimized+plugin"), "optimized+" + all);
  EXPECT_EQ(with_operators_of(plugins, "plugin+checkpoint"), all + "+checkpoint");
  for (const std::string other : {"baseline", "qkv+a::swiglu", "plugins", "my::plugin", ""}) {
    EXPECT_EQ(with_operators_of(plugins, other), other);
    EXPECT_EQ(with_operators_of({}, other), other);
  }
  EXPECT_THROW(with_operators_of({}, "optimized+plugin"), std::invalid_argument);
}

}  // namespace
}  // namespace tinyllama

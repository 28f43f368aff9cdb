// Parts slowed on purpose: how much work is added, and that nothing else changes.
#include "model/slowdown.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "model/testing.hpp"
#include "model/train_step.hpp"
#include "model/variant.hpp"

namespace tinyllama {
namespace {

using slowdown::Ledger;
using testing::error_of;

constexpr const char* kEveryPart =
    "embedding:10,rms_norm:10,rotary:10,attention:10,ffn:10,loss:10,optimizer:10";

// Slows the process as a value of the variable would, for the life of the object.
class ScopedSlowdown {
 public:
  explicit ScopedSlowdown(const std::string& text) {
    slowdown::ledger() = Ledger(parse_slowdown(text));
  }
  ~ScopedSlowdown() { slowdown::ledger() = Ledger(SlowdownPlan()); }
};

// Works for so many seconds of processor time. Returns how many it were.
double work_for(double seconds) {
  const double begun = slowdown::worked_seconds();
  double took = 0.0;
  while (took < seconds) took = slowdown::worked_seconds() - begun;
  return took;
}

std::string refusal_of(const std::string& text) {
  return error_of<std::invalid_argument>([&] { parse_slowdown(text); });
}

TEST(ParseSlowdown, ReadsPartsAndFractions) {
  EXPECT_TRUE(parse_slowdown("").empty());
  const SlowdownPlan plan = parse_slowdown("ffn:0.05,rotary:10");
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan.at(Part::ffn), 0.05);
  EXPECT_EQ(plan.at(Part::rotary), 10.0);
}

TEST(ParseSlowdown, NamesTheTextAndTheRule) {
  EXPECT_CONTAINS(refusal_of("mlp:1"),
                  "TINY_LLAMA_SLOWDOWN=mlp:1: 'mlp' is not a part; parts: emb");
  EXPECT_CONTAINS(refusal_of("ffn"), "'ffn' is not of the form <part>:<fraction>");
  for (const std::string fraction : {"0", "-1", "10.5", "nan", "inf", "1x", "", "1e999"}) {
    EXPECT_CONTAINS(refusal_of("ffn:" + fraction), "is not a number above 0 and at most 10");
  }
  EXPECT_CONTAINS(refusal_of("ffn:1,ffn:2"), "'ffn' is named twice");
  EXPECT_CONTAINS(refusal_of("ffn:1,"), "nothing follows the last comma");
  EXPECT_CONTAINS(refusal_of(",ffn:1"), "'' is not of the form");
}

constexpr Ledger::Kind kForward{Part::ffn, Ledger::Direction::forward, 64};

TEST(SlowdownLedger, CarriesWhatIsOwedOverToLaterCalls) {
  Ledger ledger(parse_slowdown("ffn:0.1"));
  constexpr double unit = 1e-3;
  int units = 0;
  double longest = 0.0;
  double repeated = 0.0;
  const auto repeat = [&] {
    const double took = work_for(unit);
    longest = std::max(longest, took);
    repeated += took;
    ++units;
  };
  // 0.4 units are owed after each call, so that of ten calls some repeat a unit and some none.
  int most_in_a_call = 0;
  for (int call = 0; call < 50; ++call) {
    const int before = units;
    ledger.settle(kForward, 4 * unit, 0.0, repeat);
    most_in_a_call = std::max(most_in_a_call, units - before);
  }
  EXPECT_EQ(most_in_a_call, 1);
  constexpr double owed = 50 * 0.4 * unit;
  EXPECT_GE(repeated, owed - longest);
  EXPECT_LE(units, 21);
}

TEST(SlowdownLedger, OneInterruptedUnitDoesNotSuspendTheSlowdown) {
  Ledger ledger(parse_slowdown("ffn:0.5"));
  int units = 0;
  double usual_units = 0.0;
  const auto repeat = [&] {
    if (++units == 10) {
      work_for(0.2);
    } else {
      usual_units += work_for(1e-3);
    }
  };
  for (int call = 0; call < 100; ++call) ledger.settle(kForward, 2e-3, 0.0, repeat);
  // Taken in full, the 0.2 s would have been all that the 100 calls owe, twice over.
  EXPECT_GE(usual_units, 0.08);
}

TEST(SlowdownLedger, TheCostOfMeasuringCountsAsRepaid) {
  Ledger ledger(parse_slowdown("ffn:0.5"));
  int units = 0;
  for (int call = 0; call < 10; ++call) ledger.settle(kForward, 1e-3, 1e-3, [&] { ++units; });
  EXPECT_EQ(units, 0);
}

TEST(SlowdownLedger, NothingIsSlowedInsideRepeatedWork) {
  Ledger ledger(parse_slowdown("ffn:1"));
  EXPECT_TRUE(ledger.is_slowed(Part::ffn));
  EXPECT_FALSE(ledger.is_slowed(Part::loss));
  bool inside = true;
  ledger.settle(kForward, 1e-6, 0.0, [&] { inside = ledger.is_slowed(Part::ffn); });
  EXPECT_FALSE(inside);
  EXPECT_TRUE(ledger.is_slowed(Part::ffn));
}

// Has libtorch report its operators, as a profiler does.
class ScopedObserver {
 public:
  ScopedObserver()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(
            [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
              return nullptr;
            }))) {}
  ~ScopedObserver() { at::removeCallback(handle_); }
  ScopedObserver(const ScopedObserver&) = delete;
  ScopedObserver& operator=(const ScopedObserver&) = delete;

 private:
  at::CallbackHandle handle_;
};

TEST(SlowdownLedger, RestsWhileItIsObserved) {
  Ledger ledger(parse_slowdown("ffn:1"));
  int units = 0;
  const auto repeat = [&] {
    ++units;
    work_for(1e-4);
  };
  {
    const ScopedObserver observer;
    EXPECT_FALSE(ledger.is_slowed(Part::ffn));
    ledger.settle(kForward, 1.0, 0.0, repeat);
  }
  EXPECT_EQ(units, 0);
  EXPECT_TRUE(ledger.is_slowed(Part::ffn));
  ledger.settle(kForward, 1e-3, 0.0, repeat);
  EXPECT_GE(units, 1);
  EXPECT_LE(units, 20) << "the observed second is not made up for";
}

TEST(SomeTokens, AreAShareOfTheFirstSample) {
  EXPECT_EQ(slowdown::some_tokens(at::zeros({4, 32, 3})).sizes(), (at::IntArrayRef{1, 4, 3}));
  EXPECT_EQ(slowdown::some_tokens(at::zeros({1, 2})).sizes(), (at::IntArrayRef{1, 1}));
  EXPECT_EQ(slowdown::some_tokens(at::zeros({99, 2})).sizes(), (at::IntArrayRef{1, 2}));
}

// What the wrapped layer and its repeats did.
struct Calls {
  int forward = 0;
  int repeats_without_gradients = 0;
};

// Twice its input, in two operations that the graph sees, whose forward takes 2 ms.
at::Tensor twice(const at::Tensor& x, Calls& calls) {
  return slowed_as(
      Part::ffn,
      [&] {
        ++calls.forward;
        work_for(2e-3);
        return x.mul(4.0).mul(0.5);
      },
      [&calls](const at::Tensor& some) {
        EXPECT_EQ(some.sizes(), (at::IntArrayRef{1, 1, 3}));
        if (!at::GradMode::is_enabled()) ++calls.repeats_without_gradients;
        work_for(1e-4);
      },
      x);
}

TEST(Slowed, RepeatsAfterTheForwardAndAfterTheBackward) {
  const ScopedSlowdown half("ffn:0.5");
  const at::Tensor x = at::ones({2, 4, 3}).requires_grad_(true);
  Calls calls;
  const at::Tensor y = twice(x, calls);
  EXPECT_EQ(calls.forward, 1);
  const int after_forward = calls.repeats_without_gradients;
  EXPECT_GE(after_forward, 1);
  y.sum().backward();
  EXPECT_GE(calls.repeats_without_gradients, after_forward + 1);
  EXPECT_TRUE(at::equal(x.grad(), at::full_like(x, 2.0)));
}

TEST(Slowed, OnlyTheForwardWithoutGradients) {
  const ScopedSlowdown half("ffn:0.5");
  const at::Tensor x = at::ones({2, 4, 3});
  Calls calls;
  EXPECT_FALSE(twice(x, calls).requires_grad());
  EXPECT_GE(calls.repeats_without_gradients, 1);
}

TEST(Slowed, NotABackwardThatIsObservedAloneAfterASlowedForward) {
  const ScopedSlowdown half("ffn:0.5");
  const at::Tensor x = at::ones({2, 4, 3}).requires_grad_(true);
  Calls calls;
  const at::Tensor sum = twice(x, calls).sum();
  const int after_forward = calls.repeats_without_gradients;
  EXPECT_GE(after_forward, 1);
  const ScopedObserver observer;
  sum.backward();
  EXPECT_EQ(calls.repeats_without_gradients, after_forward);
  EXPECT_TRUE(at::equal(x.grad(), at::full_like(x, 2.0)));
}

TEST(Slowed, OutputsMayBeChangedInPlace) {
  const ScopedSlowdown half("ffn:0.5");
  const at::Tensor x = at::ones({2, 4, 3}).requires_grad_(true);
  Calls calls;
  twice(x, calls).mul_(3.0).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full_like(x, 6.0)));
}

TEST(Slowed, OtherPartsAreLeftAlone) {
  const ScopedSlowdown other("loss:10");
  const at::Tensor x = at::ones({2, 4, 3}).requires_grad_(true);
  Calls calls;
  twice(x, calls).sum().backward();
  EXPECT_EQ(calls.forward, 1);
  EXPECT_EQ(calls.repeats_without_gradients, 0);
}

// Loss, gradients, parameters and moments after two steps on one batch.
NamedTensors two_steps(const Variant& variant, Dtype dtype) {
  TensorInitializer initializer(7, dtype, c10::DeviceType::CPU);
  const TinyLlama model(testing::small_config(), variant, 5, initializer);
  AdamW optimizer(model.parameters(), variant);
  const TokenBatch batch = random_token_batch(testing::small_config(), 3, 5, initializer);
  TrainStep step(model, optimizer);
  NamedTensors all;
  for (int i = 0; i < 2; ++i) {
    optimizer.clear_gradients();
    all.emplace_back("loss", step.run({&batch, 1}));
  }
  for (const auto& [name, parameter] : model.parameters()) {
    all.emplace_back("gradient of " + name, parameter.grad());
    all.emplace_back(name, parameter.detach());
  }
  append(all, optimizer.first_moments());
  append(all, optimizer.second_moments());
  return all;
}

TEST(Slowed, ATrainingStepIsTheSameToTheLastBit) {
  const auto traits = device_traits(c10::DeviceType::CPU);
  for (const Dtype dtype : {Dtype::f32, Dtype::amp_bf16}) {
    for (const Variant& variant : {Variant(), optimized_variant(dtype, traits)}) {
      const NamedTensors usual = two_steps(variant, dtype);
      const ScopedSlowdown all(kEveryPart);
      const NamedTensors slow = two_steps(variant, dtype);
      ASSERT_EQ(slow.size(), usual.size());
      for (size_t i = 0; i < usual.size(); ++i)
        EXPECT_TRUE(at::equal(slow[i].second, usual[i].second))
            << usual[i].first << ", " << variant.name() << ", " << to_string(dtype);
    }
  }
}

TEST(Slowed, EveryPartOfATrainingStepForwardAndBackward) {
  const auto traits = device_traits(c10::DeviceType::CPU);
  for (const Variant& variant : {Variant(), optimized_variant(Dtype::f32, traits)}) {
    const ScopedSlowdown all(kEveryPart);
    two_steps(variant, Dtype::f32);
    for (const auto& [part, fraction] : slowdown::ledger().plan()) {
      const auto units = [part = part](Ledger::Direction direction) {
        return slowdown::ledger().units(part, direction);
      };
      const auto name = ::testing::Message()
                        << "part " << static_cast<int>(part) << ", " << variant.name();
      EXPECT_GE(units(Ledger::Direction::forward), 2) << name;
      const bool has_backward = part != Part::optimizer;
      EXPECT_EQ(units(Ledger::Direction::backward) >= 2, has_backward) << name;
    }
  }
}

TEST(RefuseVariant, WhatCannotBeSlowed) {
  DeviceTraits gpu;
  gpu.is_gpu = true;
  EXPECT_EQ(refuse_variant(Variant({Switch::checkpoint}), Dtype::f32, {}), "");
  EXPECT_EQ(refuse_variant(Variant(), Dtype::f32, gpu), "");
  const ScopedSlowdown slow("ffn:0.5");
  EXPECT_EQ(refuse_variant(Variant(), Dtype::f32, {}), "");
  EXPECT_CONTAINS(refuse_variant(Variant({Switch::checkpoint}), Dtype::f32, {}),
                  "checkpoint: TINY_LLAMA_SLOWDOWN");
  EXPECT_CONTAINS(
      error_of<std::invalid_argument>([&] { refuse_variant(Variant(), Dtype::f32, gpu); }),
      "TINY_LLAMA_SLOWDOWN: parts are slowed on the CPU only");
}

}  // namespace
}  // namespace tinyllama

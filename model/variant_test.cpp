// The table of switches, and the rules of variant.cpp on devices that are described, not present.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "model/testing.hpp"
#include "model/variant.hpp"

namespace tinyllama {
namespace {

// A CPU with AVX-512 but without units for narrow matrix multiplications.
DeviceTraits plain_cpu() {
  DeviceTraits traits;
  traits.has_onednn = true;
  return traits;
}

DeviceTraits gpu() {
  DeviceTraits traits;
  traits.is_gpu = traits.fast_bf16_gemm = traits.fast_f16_gemm = traits.has_graphs = true;
  return traits;
}

std::string refusal(Switch option, Dtype dtype, const DeviceTraits& traits) {
  return refuse_variant(Variant({option}), dtype, traits);
}

TEST(Switches, TellThemselvesApartAndChangeSomethingInAStep) {
  std::set<std::string_view> names;
  for (const Switch option : all_switches()) {
    EXPECT_TRUE(names.insert(to_string(option)).second) << to_string(option);
    EXPECT_FALSE(descriptor(option).description.empty()) << to_string(option);
    EXPECT_EQ(Variant::parse(to_string(option)), Variant({option}));
  }
  const auto of_step = switches_of(ModelPart::full_step);
  EXPECT_TRUE(std::ranges::equal(of_step, all_switches()));
}

TEST(Switches, OfAPartAreThoseOfWhatItIsMadeOf) {
  using Switches = std::vector<Switch>;
  EXPECT_EQ(switches_of(ModelPart::embedding), Switches());
  EXPECT_EQ(switches_of(ModelPart::rotary), Switches({Switch::fused_rotary}));
  EXPECT_EQ(switches_of(ModelPart::attention),
            Switches({Switch::qkv, Switch::sdpa, Switch::fused_attention, Switch::fused_rotary,
                      Switch::onednn, Switch::wide_products, Switch::layout}));
  EXPECT_EQ(switches_of(ModelPart::optimizer),
            Switches({Switch::foreach_adamw, Switch::fused_adamw, Switch::layout}));
  // What the optimizer alone contains, and the step alone.
  const auto of_model = switches_of(ModelPart::model);
  for (const Switch absent : {Switch::foreach_adamw, Switch::fused_adamw, Switch::graph})
    EXPECT_EQ(std::ranges::count(of_model, absent), 0) << to_string(absent);
  EXPECT_EQ(of_model.size(), all_switches().size() - 3);
}

TEST(Variant, RefusesSwitchesThatExcludeEachOther) {
  for (const Switch option : all_switches()) {
    for (const auto& [other, reason] : descriptor(option).excludes) {
      const std::string both = Variant({other, option}).switch_names();
      const std::string message =
          testing::error_of<std::invalid_argument>([&] { Variant::parse(both); });
      EXPECT_CONTAINS(message,
                      std::string(to_string(option)) + " and " + std::string(to_string(other)));
      EXPECT_CONTAINS(message, std::string(reason));
    }
  }
  EXPECT_EQ(Variant({Switch::qkv, Switch::gate_up, Switch::sdpa}).contradiction(), "");
}

TEST(RefuseVariant, NamesWhatTheDeviceLacks) {
  EXPECT_EQ(refusal(Switch::graph, Dtype::f32, plain_cpu()),
            "graph: only a GPU captures its work; this is a CPU");
  EXPECT_EQ(refusal(Switch::onednn, Dtype::f32, gpu()),
            "onednn: a library for CPUs; this is a GPU");
  EXPECT_TRUE(refusal(Switch::wide_products, Dtype::bf16, gpu()).starts_with("wide_products: "));
  EXPECT_TRUE(refusal(Switch::fused_attention, Dtype::bf16, gpu()).starts_with("fused_attention"));
  DeviceTraits without = gpu();
  without.has_own_kernels = without.has_graphs = false;
  EXPECT_EQ(refusal(Switch::fused_norm, Dtype::f32, without),
            "fused_norm: this build has no kernel of ours for GPUs");
  EXPECT_EQ(refusal(Switch::graph, Dtype::f32, without),
            "graph: this libtorch cannot capture work of this device");
  without.is_gpu = false;
  without.has_own_kernels = true;
  EXPECT_TRUE(refusal(Switch::onednn, Dtype::f32, without).starts_with("onednn: this libtorch"));
}

TEST(RefuseVariant, NamesWhatTheTypeExcludes) {
  EXPECT_TRUE(refusal(Switch::graph, Dtype::amp_f16, gpu()).starts_with("graph: the loss scaling"));
  EXPECT_EQ(refusal(Switch::graph, Dtype::amp_bf16, gpu()), "");
  EXPECT_TRUE(refusal(Switch::graph, Dtype::bf16, gpu()).starts_with("graph: with parameters in"));
  const Variant fused({Switch::graph, Switch::fused_adamw});
  EXPECT_EQ(refuse_variant(fused, Dtype::bf16, gpu()), "");
  EXPECT_TRUE(refusal(Switch::onednn, Dtype::bf16, plain_cpu()).starts_with("onednn: changes"));
  EXPECT_TRUE(refusal(Switch::wide_products, Dtype::f32, plain_cpu())
                  .starts_with("wide_products: f32 is not narrower"));
  EXPECT_EQ(refusal(Switch::wide_products, Dtype::amp_bf16, plain_cpu()), "");
  const Variant both({Switch::onednn, Switch::wide_products});
  EXPECT_EQ(refuse_variant(both, Dtype::bf16, plain_cpu()), "");
}

TEST(OptimizedVariant, RunsWhereverItIsChosen) {
  DeviceTraits no_kernels = gpu(), amd = plain_cpu(), fast = plain_cpu();
  no_kernels.has_own_kernels = false;
  amd.fast_onednn_f32 = true;
  fast.fast_bf16_gemm = fast.fast_f16_gemm = true;
  for (const DeviceTraits& traits : {plain_cpu(), amd, fast, gpu(), no_kernels}) {
    for (const Dtype dtype : benchmark_dtypes()) {
      const Variant best = optimized_variant(dtype, traits);
      EXPECT_EQ(best.name(), "optimized");
      EXPECT_EQ(best.contradiction(), "");
      EXPECT_EQ(refuse_variant(best, dtype, traits), "") << best.switch_names();
    }
  }
}

TEST(OptimizedVariant, MultipliesWhereTheUnitsAre) {
  DeviceTraits amd = plain_cpu(), fast = plain_cpu();
  amd.fast_onednn_f32 = true;
  fast.fast_bf16_gemm = true;
  EXPECT_TRUE(optimized_variant(Dtype::bf16, plain_cpu()).has(Switch::wide_products));
  EXPECT_FALSE(optimized_variant(Dtype::bf16, fast).has(Switch::wide_products));
  EXPECT_FALSE(optimized_variant(Dtype::f32, plain_cpu()).has(Switch::onednn));
  EXPECT_TRUE(optimized_variant(Dtype::f32, amd).has(Switch::onednn));
  EXPECT_TRUE(optimized_variant(Dtype::amp_bf16, amd).has(Switch::onednn));
}

TEST(RunnableVariants, AreEachSwitchAloneAndTheSetsOnce) {
  const auto variants = runnable_variants(Dtype::f32, gpu());
  EXPECT_TRUE(variants.front().is_baseline());
  EXPECT_EQ(variants.back().name(), "optimized");
  // All but onednn, wide_products and fused_attention; the baseline and two sets beside them.
  EXPECT_EQ(variants.size(), all_switches().size() - 3 + 3);
}

// Whatever processor the tests run on, they prove what optimized is on Intel's and AMD's, with
// units for narrow matrix multiplications and without.
TEST(RunnableVariants, HoldWhatOptimizedIsOnEveryProcessor) {
  for (const Dtype dtype : benchmark_dtypes()) {
    for (const DeviceTraits& here : processors_like(plain_cpu())) {
      std::vector<std::string> names;
      for (const Variant& variant : runnable_variants(dtype, here))
        names.push_back(variant.switch_names());
      EXPECT_EQ(names.back(), optimized_variant(dtype, here).switch_names());
      for (const DeviceTraits& elsewhere : processors_like(plain_cpu())) {
        const std::string best = optimized_variant(dtype, elsewhere).switch_names();
        EXPECT_EQ(std::count(names.begin(), names.end(), best), 1) << best;
      }
    }
  }
  EXPECT_EQ(processors_like(gpu()).size(), 1U);
}

}  // namespace
}  // namespace tinyllama

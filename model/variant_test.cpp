// What refuses a variant and what `optimized` is, on devices that are described, not present.
#include "model/variant.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace tinyllama {
namespace {

// A CPU with AVX-512 but without units for narrow GEMMs.
DeviceTraits plain_cpu() {
  return {};
}

DeviceTraits gpu() {
  DeviceTraits traits;
  traits.is_gpu = traits.fast_bf16_gemm = traits.fast_f16_gemm = traits.has_graphs = true;
  return traits;
}

std::string refusal(Switch option, Dtype dtype, const DeviceTraits& traits) {
  return refuse_variant(Variant({option}), dtype, traits);
}

TEST(RefuseVariant, NamesWhatTheDeviceLacks) {
  EXPECT_EQ(refusal(Switch::graph, Dtype::f32, plain_cpu()),
            "graph: only a GPU captures its work; this is a CPU");
  EXPECT_EQ(refusal(Switch::tiled_gemm, Dtype::f32, gpu()),
            "tiled_gemm: our kernel is for CPUs; a GPU has the library's");
  EXPECT_TRUE(refusal(Switch::wide_gemm, Dtype::bf16, gpu()).starts_with("wide_gemm: "));
  EXPECT_TRUE(refusal(Switch::fused_attention, Dtype::bf16, gpu()).starts_with("fused_attention"));
  DeviceTraits without = gpu();
  without.no_own_kernels = "none were built";
  without.has_graphs = false;
  EXPECT_EQ(refusal(Switch::fused_norm, Dtype::f32, without), "fused_norm: none were built");
  EXPECT_EQ(refusal(Switch::graph, Dtype::f32, without),
            "graph: this libtorch cannot capture work of this device");
}

TEST(RefuseVariant, AttentionThatTheLibraryComputesAsTheBaselineDoesIsNone) {
  DeviceTraits radeon = gpu(), without = gpu();
  radeon.attention_by_math = {c10::ScalarType::BFloat16};
  const std::string reason = refusal(Switch::sdpa, Dtype::amp_bf16, radeon);
  EXPECT_TRUE(reason.starts_with("sdpa: in amp_bf16 the library computes a score matrix"))
      << reason;
  EXPECT_NE(reason.find("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1"), std::string::npos);
  EXPECT_EQ(refusal(Switch::sdpa, Dtype::f32, radeon), "");
  without.attention_by_math = radeon.attention_by_math;
  without.no_own_kernels = "none were built";
  for (const DeviceTraits& traits : {radeon, without}) {
    EXPECT_FALSE(optimized_variant(Dtype::bf16, traits).has(Switch::sdpa));
    EXPECT_TRUE(optimized_variant(Dtype::f16, traits).has(Switch::sdpa));
  }
}

TEST(RefuseVariant, NamesWhatTheTypeExcludes) {
  EXPECT_TRUE(refusal(Switch::graph, Dtype::amp_f16, gpu()).starts_with("graph: the loss scaling"));
  EXPECT_EQ(refusal(Switch::graph, Dtype::amp_bf16, gpu()), "");
  EXPECT_TRUE(refusal(Switch::graph, Dtype::bf16, gpu()).starts_with("graph: with parameters in"));
  const Variant fused({Switch::graph, Switch::fused_adamw});
  EXPECT_EQ(refuse_variant(fused, Dtype::bf16, gpu()), "");
  EXPECT_TRUE(refusal(Switch::wide_gemm, Dtype::f32, plain_cpu())
                  .starts_with("wide_gemm: f32 is not narrower"));
  EXPECT_EQ(refusal(Switch::wide_gemm, Dtype::amp_bf16, plain_cpu()), "");
  EXPECT_EQ(refusal(Switch::tiled_gemm, Dtype::bf16, plain_cpu()), "");
}

TEST(OptimizedVariant, RunsWhereverItIsChosen) {
  DeviceTraits no_kernels = gpu(), amd = plain_cpu(), fast = plain_cpu();
  no_kernels.no_own_kernels = "none were built";
  amd.fast_tiled_gemm = true;
  fast.fast_bf16_gemm = fast.fast_f16_gemm = true;
  DeviceTraits radeon = gpu();
  radeon.attention_by_math = {c10::ScalarType::Float, c10::ScalarType::BFloat16};
  for (const DeviceTraits& traits : {plain_cpu(), amd, fast, gpu(), no_kernels, radeon}) {
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
  amd.fast_tiled_gemm = true;
  fast.fast_bf16_gemm = true;
  EXPECT_TRUE(optimized_variant(Dtype::bf16, plain_cpu()).has(Switch::wide_gemm));
  EXPECT_FALSE(optimized_variant(Dtype::bf16, fast).has(Switch::wide_gemm));
  EXPECT_FALSE(optimized_variant(Dtype::f32, plain_cpu()).has(Switch::tiled_gemm));
  EXPECT_TRUE(optimized_variant(Dtype::f32, amd).has(Switch::tiled_gemm));
  EXPECT_TRUE(optimized_variant(Dtype::amp_bf16, amd).has(Switch::tiled_gemm));
  EXPECT_FALSE(optimized_variant(Dtype::amp_bf16, amd).has(Switch::wide_gemm));
}

TEST(RunnableVariants, AreEachSwitchAloneAndTheSetsOnce) {
  const auto variants = runnable_variants(Dtype::f32, gpu());
  EXPECT_TRUE(variants.front().is_baseline());
  EXPECT_EQ(variants.back().name(), "optimized");
  // All but tiled_gemm, wide_gemm and fused_attention; the baseline and two sets beside them.
  EXPECT_EQ(variants.size(), all_switches().size() - 3 + 3);
}

// Whatever processor the tests run on, they prove what optimized is on Intel's and AMD's, with
// units for narrow GEMMs and without.
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

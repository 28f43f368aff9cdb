#include "benchmarks/training/workshop_options.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "model/testing.hpp"

namespace tinyllama::training {
namespace {

using ::tinyllama::testing::error_of;

TrainOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "tiny_llama_train");
  return *parse_train_options(static_cast<int>(arguments.size()), arguments.data(),
                              console::SizeFiles::in(TINY_LLAMA_SOURCE_DIR "/fixtures"));
}

std::string refusal(std::vector<const char*> arguments) {
  return error_of<std::invalid_argument>([&] { parse(std::move(arguments)); });
}

std::string variant(std::vector<const char*> arguments) {
  return parse(std::move(arguments)).variant.name();
}

TEST(WorkshopOptionsTest, FusionsAreVersion2sAndAllOnUnlessOneIsDisabled) {
  EXPECT_EQ(variant({}), "baseline");
  EXPECT_EQ(variant({"--disable-all-fusion"}), "baseline");
  for (const char* option :
       {"--enable-qkv-fusion", "--enable-flash-attention", "--enable-swiglu-fusion"}) {
    EXPECT_EQ(variant({option}), "fused") << option;
  }
  EXPECT_EQ(variant({"--disable-qkv-fusion"}), "gate_up+fused_swiglu+sdpa+fused_adamw");
  EXPECT_EQ(variant({"--disable-flash-attention"}), "qkv+gate_up+fused_swiglu+fused_adamw");
  EXPECT_EQ(variant({"--enable-qkv-fusion", "--disable-swiglu-fusion"}), "qkv+sdpa+fused_adamw");
}

TEST(WorkshopOptionsTest, OptimizedStandsForTorchCompileAndSaysSo) {
  for (const char* option : {"--enable-torch-compile", "--enable-all-fusion"}) {
    const TrainOptions options = parse({option});
    EXPECT_TRUE(options.variant.is_optimized());
    EXPECT_TRUE(options.left_out.empty());
    EXPECT_CONTAINS(options.note, std::string(option) + ": torch.compile is of Python");
    EXPECT_CONTAINS(options.note, "scripts/peers");
  }
  const TrainOptions options = parse({"--enable-torch-compile", "--disable-flash-attention"});
  EXPECT_TRUE(options.variant.is_optimized());
  EXPECT_EQ(options.left_out, (std::vector{Switch::sdpa, Switch::fused_attention}));
  EXPECT_EQ(parse({"--disable-flash-attention"}).note, "");
}

TEST(WorkshopOptionsTest, WhatContradictsIsRefused) {
  for (const auto& [one, other] : std::initializer_list<std::pair<const char*, const char*>>{
           {"--enable-qkv-fusion", "--disable-qkv-fusion"},
           {"--enable-swiglu-fusion", "--disable-all-fusion"},
           {"--disable-flash-attention", "--enable-all-fusion"},
           {"--enable-torch-compile", "--disable-all-fusion"},
           {"--enable-all-fusion", "--disable-all-fusion"},
           {"--enable-torch-compile", "--variant=fused"},
           {"--disable-all-fusion", "--variant=fused"}}) {
    const std::string said = refusal({one, other});
    const std::string name = std::string(other).substr(0, std::string(other).find('='));
    EXPECT_CONTAINS(said, std::string(one) + " with " + name + ": ");
    EXPECT_CONTAINS(said, "leave one out");
  }
  EXPECT_CONTAINS(refusal({"--amp-dtype=bfloat16"}), "--amp-dtype: has a meaning with --use-amp");
  EXPECT_CONTAINS(refusal({"--use-amp", "--amp-dtype=fp8"}),
                  "'fp8' must be one of bfloat16, float16");
  EXPECT_CONTAINS(refusal({"--use-amp", "--amp-dtype=bfloat16", "--dtype=amp_f16"}),
                  "--amp-dtype with --dtype: ");
  EXPECT_CONTAINS(refusal({"--profile-attention-only"}), "add --enable-pytorch-profiler");
  EXPECT_CONTAINS(refusal({"--sort-by=speed"}), "'speed' must be one of self_device_time_total, ");
  EXPECT_CONTAINS(refusal({"--warmup-steps=-1"}), "must be an integer from 0");
}

TEST(WorkshopOptionsTest, ProfilersAndTypesByTheWorkshopsNames) {
  const TrainOptions all = parse({"--enable-all-profiling"});
  EXPECT_TRUE(all.profile_pytorch && all.profile_memory && all.profile_flops);
  EXPECT_TRUE(parse({"--enable-memory-profiling"}).profile_memory);
  EXPECT_EQ(parse({"--use-amp", "--amp-dtype", "float16"}).dtype, Dtype::amp_f16);
  EXPECT_EQ(parse({"--use-amp", "--amp-dtype", "bfloat16"}).dtype, Dtype::amp_bf16);
  const TrainOptions sorted =
      parse({"--enable-pytorch-profiler", "--sort-by", "cuda_time_total", "--warmup-steps=2"});
  EXPECT_EQ(sorted.operator_order, OperatorOrder::time);
  EXPECT_EQ(sorted.operator_steps().first, 3);
  EXPECT_EQ(sorted.operator_steps().last, 8);
}

}  // namespace
}  // namespace tinyllama::training

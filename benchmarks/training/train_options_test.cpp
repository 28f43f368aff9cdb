#include "benchmarks/training/train_options.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <stdexcept>
#include <utility>
#include <vector>

#include "model/testing.hpp"

namespace tinyllama::training {
namespace {

using ::tinyllama::testing::contains;
using ::tinyllama::testing::error_of;

TrainOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "tiny_llama_train");
  return *parse_train_options(static_cast<int>(arguments.size()), arguments.data(),
                              console::SizeFiles::in(TINY_LLAMA_SOURCE_DIR "/fixtures"));
}

std::string refusal(std::vector<const char*> arguments) {
  return error_of<std::invalid_argument>([&] { parse(std::move(arguments)); });
}

TEST(TrainOptionsTest, DefaultsAreTheWorkshopsTinyModel) {
  const TrainOptions options = parse({});
  EXPECT_EQ(options.dimensions, ModelDimensions{});
  EXPECT_EQ(options.batch, 8);
  EXPECT_EQ(options.seq, 128);
  EXPECT_EQ(options.num_steps, 50);
  EXPECT_DOUBLE_EQ(options.learning_rate, 1e-4);
  EXPECT_EQ(options.dtype, Dtype::f32);
  EXPECT_TRUE(options.variant.is_baseline());
  EXPECT_TRUE(options.folder().empty());
}

TEST(TrainOptionsTest, ASizeGivesBatchAndSequenceUnlessTheyAreSaid) {
  const TrainOptions medium = parse({"--size", "medium", "--seq-len", "64"});
  EXPECT_EQ(medium.dimensions.hidden_dim, 1024);
  EXPECT_EQ(medium.batch, 16);
  EXPECT_EQ(medium.seq, 64);
  EXPECT_EQ(medium.size, "medium");
  const TrainOptions custom = parse({"--num-layers", "2", "--num-heads=4"});
  EXPECT_EQ(custom.dimensions.n_layers, 2);
  EXPECT_EQ(custom.dimensions.n_heads, 4);
  EXPECT_EQ(custom.size, "custom");
}

TEST(TrainOptionsTest, APublishedModelIsASizeUntilOneOfItsDimensionsIsAnother) {
  const TrainOptions model = parse({"--size", "tinyllama-1.1b"});
  EXPECT_EQ(model.dimensions.intermediate_dim, 5632);
  EXPECT_EQ(model.size, "tinyllama-1.1b");
  EXPECT_EQ(model.batch, 1);
  EXPECT_EQ(model.seq, 2048);
  EXPECT_CONTAINS(model.config_text, "\"num_hidden_layers\":22");
  const TrainOptions two_layers = parse({"--size", "tinyllama-1.1b", "--n-layers=2"});
  EXPECT_EQ(two_layers.dimensions.intermediate_dim, 5632);
  EXPECT_EQ(two_layers.size, "custom");
  EXPECT_EQ(two_layers.config_text, "");  // it would be saved with the weights
  EXPECT_CONTAINS(refusal({"--size=tinylama-1.1b"}), "the nearest is tinyllama-1.1b");
}

TEST(TrainOptionsTest, AConfigGivesTheDimensionsAlone) {
  const std::string folder = TINY_LLAMA_SOURCE_DIR "/fixtures/golden/gqa_groups_2";
  const char* config = folder.c_str();
  const TrainOptions options = parse({"--config", config, "--seq-len=16"});
  EXPECT_EQ(options.size, "custom");
  EXPECT_EQ(options.dimensions.n_heads / options.dimensions.n_kv_heads, 2);
  EXPECT_EQ(options.batch, 8);
  EXPECT_EQ(options.seq, 16);
  EXPECT_CONTAINS(options.config_text, "\"model_type\": \"llama\"");
  for (const char* other : {"--size=tiny", "--hidden-dim=64"}) {
    const std::string name = std::string(other).substr(0, std::string(other).find('='));
    EXPECT_CONTAINS(refusal({"--config", config, other}),
                    name + ": must be left out with --config ");
  }
  EXPECT_CONTAINS(refusal({"--config", config, "--weights=a"}), "not with --weights a");
  EXPECT_CONTAINS(refusal({"--config=nowhere"}), "--config: nowhere: ");
}

using Steps = std::pair<int64_t, int64_t>;

TEST(TrainOptionsTest, ProfilersTakeTheStepsThatTheReferenceNamesAndKeepOutOfEachOthers) {
  const auto steps = [](StepRange (TrainOptions::*of)() const, std::vector<const char*> more) {
    const StepRange found = (parse(std::move(more)).*of)();
    return Steps{found.first, found.last};
  };
  constexpr const char* operators = "--enable-pytorch-profiler";
  const auto operator_steps = &TrainOptions::operator_steps;
  EXPECT_EQ(steps(operator_steps, {"--num-steps=20", operators}), (Steps{5, 10}));
  EXPECT_EQ(steps(operator_steps, {"--num-steps=20", operators, "--profile-steps=2"}),
            (Steps{5, 7}));
  EXPECT_EQ(steps(operator_steps, {"--num-steps=3", operators}), (Steps{3, 3}));
  EXPECT_TRUE(parse({operators}).memory_steps().empty());
  EXPECT_TRUE(parse({operators}).flops_steps().empty());
  EXPECT_EQ(parse({operators}).folder(), "profiles");
  constexpr const char* memory = "--profile-memory";
  const auto memory_steps = &TrainOptions::memory_steps;
  EXPECT_EQ(steps(memory_steps, {memory}), (Steps{2, 4}));
  EXPECT_EQ(steps(memory_steps, {memory, operators}), (Steps{2, 4}));
  EXPECT_EQ(steps(memory_steps, {memory, "--enable-deepspeed-flops", "--flops-profile-step=3"}),
            (Steps{2, 2}));
  EXPECT_EQ(steps(memory_steps, {memory, "--num-steps=1"}), (Steps{1, 1}));
  // numbers that a sum of two overflows, and that nobody counts up to
  const std::string most = std::to_string(INT64_MAX);
  const std::vector<const char*> endless = {memory,       operators,         "--num-steps",
                                            most.c_str(), "--profile-steps", most.c_str()};
  EXPECT_EQ(steps(memory_steps, endless), (Steps{2, 4}));
  EXPECT_EQ(steps(&TrainOptions::operator_steps, endless), (Steps{5, INT64_MAX}));
  EXPECT_EQ(steps(memory_steps, {memory, "--num-steps=2", operators}), (Steps{1, 1}));
}

TEST(TrainOptionsTest, MixedPrecisionIsAnAutocastDtype) {
  EXPECT_EQ(parse({"--use-amp"}).dtype, Dtype::amp_bf16);
  EXPECT_EQ(parse({"--use-amp", "--dtype=amp_f16"}).dtype, Dtype::amp_f16);
}

TEST(TrainOptionsTest, EvaluationIsOffUnlessThereIsData) {
  EXPECT_EQ(parse({}).eval_interval, 0);
  EXPECT_EQ(parse({"--data=some.txt"}).eval_interval, 100);
  EXPECT_EQ(parse({"--data=some.txt", "--eval-interval=0"}).eval_interval, 0);
}

TEST(TrainOptionsTest, BadValuesAreNamedWithTheRule) {
  const std::pair<std::vector<const char*>, const char*> cases[] = {
      {{"--batch-size=0"}, "'0' must be an integer from 1 to"},
      {{"--seq-len=1"}, "'1' must be an integer from 2 to"},
      {{"--num-steps=99999999999999999999"}, "must be an integer"},
      {{"--learning-rate=0"}, "--learning-rate: '0' must be a positive number"},
      {{"--learning-rate=nan"}, "--learning-rate: 'nan' must be"},
      {{"--size=huge"}, "--size 'huge': must be one of tiny, small"},
      {{"--dtype=f64"}, "--dtype: 'f64' must be one of"},
      {{"--dtype=f16"}, "take amp_f16"},
      {{"--variant=faster"}, "--variant: "},
      {{"--n-heads=7"}, "7"},
      {{"--profile-operators"}, "add --enable-pytorch-profiler"},
      {{"--enable-pytorch-profiler", "--profile-dir="}, "--profile-dir"},
      {{"--threads=0"}, "'0' must be an integer from 1 to 4096"},
      {{"--weights=/nonexistent", "--size=tiny"}, "must be left out with --weights"},
      {{"--num-steps=1", "--enable-pytorch-profiler", "--profile-memory"}, "raise --num-steps"},
      {{"--use-amp", "--dtype=bf16"}, "--use-amp with --dtype bf16"},
      {{"--batchsize=3"}, "did you mean --batch-size?"}};
  for (const auto& [arguments, expected] : cases) {
    const std::string message = refusal(arguments);
    EXPECT_TRUE(contains(message, expected)) << arguments.front() << " said: " << message;
  }
}

// ---- the workshop's own names (workshop_options.cpp)

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

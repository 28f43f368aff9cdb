#include "benchmarks/scaling/scaling_options.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "model/testing.hpp"

namespace tinyllama::scaling {
namespace {

using ::tinyllama::testing::error_of;

ScalingOptions parse(std::vector<const char*> arguments, int ranks = 2) {
  arguments.insert(arguments.begin(), "tiny_llama_scaling");
  return *parse_scaling_options(static_cast<int>(arguments.size()), arguments.data(), ranks,
                                TINY_LLAMA_SOURCE_DIR "/fixtures/problem_sizes.json");
}

std::string refusal(std::vector<const char*> arguments, int ranks = 2) {
  return error_of<std::invalid_argument>([&] { parse(std::move(arguments), ranks); });
}

TEST(ScalingOptionsTest, DefaultsAreAWeakStudyOfSmall) {
  const ScalingOptions options = parse({});
  EXPECT_EQ(options.size, "small");
  EXPECT_EQ(options.batch, 8);
  EXPECT_EQ(options.seq, 256);
  EXPECT_FALSE(options.global_batch);
  EXPECT_EQ(options.bucket_bytes(), int64_t{25} << 20);
  EXPECT_TRUE(options.measures("full_step"));
  EXPECT_TRUE(options.measures("all_gather"));
}

TEST(ScalingOptionsTest, AGlobalBatchIsSharedByTheRanks) {
  EXPECT_EQ(parse({"--global-batch=12"}, 4).batch, 3);
  EXPECT_CONTAINS(refusal({"--global-batch=10"}, 4),
                  "--global-batch 10: must be a multiple of the 4 ranks");
  EXPECT_CONTAINS(refusal({"--global-batch=8", "--batch=4"}), "--batch 4 with --global-batch 8");
}

TEST(ScalingOptionsTest, WhatCannotBeIsNamed) {
  EXPECT_CONTAINS(refusal({"--components=step"}), "--components 'step': must be one of full_step");
  EXPECT_CONTAINS(refusal({"--size=huge"}), "--size 'huge'");
  EXPECT_CONTAINS(refusal({"--dtype=f64"}), "--dtype 'f64'");
  EXPECT_CONTAINS(refusal({"--bucket-mb=0"}), "--bucket-mb 0");
  EXPECT_CONTAINS(refusal({"--timeout=-1"}), "--timeout -1");
  EXPECT_CONTAINS(refusal({"--timeout=1e10"}), "--timeout 1e+10: must be from 0.1 to 1e+06");
  EXPECT_CONTAINS(refusal({"--seq=1"}), "--seq 1: must be 2 or more");
  EXPECT_CONTAINS(refusal({"--rounds=0"}), "--rounds 0");
  EXPECT_CONTAINS(refusal({"--max-bytes=3"}), "--max-bytes 3");
  EXPECT_CONTAINS(refusal({"--shard-optimizer", "--dtype=amp_f16"}), "amp_f16");
  EXPECT_CONTAINS(refusal({"--verify=only"}), "--verify 'only'");
}

TEST(ScalingOptionsTest, RanksAgreeOnWhatIsComputedAndNotOnWhereItGoes) {
  const auto one = agreement_of(parse({"--benchmark_out=a.json", "--timeout=5"}));
  EXPECT_EQ(one, agreement_of(parse({})));
  EXPECT_NE(one, agreement_of(parse({"--bucket-mb=1"})));
  EXPECT_NE(one, agreement_of(parse({"--seed=1"})));
}

}  // namespace
}  // namespace tinyllama::scaling

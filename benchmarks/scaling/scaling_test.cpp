#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "benchmarks/distributed/testing.hpp"
#include "benchmarks/scaling/collectives.hpp"
#include "benchmarks/scaling/shared_steps.hpp"
#include "benchmarks/scaling/steps.hpp"
#include "model/testing.hpp"

namespace tinyllama::scaling {
namespace {

using ::tinyllama::testing::error_of;

ScalingOptions parse(std::vector<const char*> arguments, int ranks = 2) {
  arguments.insert(arguments.begin(), "tiny_llama_scaling");
  return *parse_scaling_options(static_cast<int>(arguments.size()), arguments.data(), ranks,
                                console::SizeFiles::in(TINY_LLAMA_SOURCE_DIR "/fixtures"));
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

TEST(ScalingOptionsTest, TakesPublishedModelsAndAConfig) {
  EXPECT_EQ(parse({"--size=tinyllama-1.1b"}).dimensions.n_layers, 22);
  const std::string folder = TINY_LLAMA_SOURCE_DIR "/fixtures/golden/gqa_groups_2";
  const ScalingOptions options = parse({"--config", folder.c_str()});
  EXPECT_EQ(options.size, "custom");
  EXPECT_EQ(options.seq, 128);
  EXPECT_CONTAINS(refusal({"--config", folder.c_str(), "--n-layers=2"}),
                  "--n-layers: must be left");
}

TEST(ScalingOptionsTest, RanksOfOtherFeaturesDoNotMeet) {
  const ScalingOptions one = parse({});
  ScalingOptions other = one;
  EXPECT_EQ(agreement_of(one), agreement_of(other));
  other.dimensions.rope_theta = 500000;
  EXPECT_NE(agreement_of(one), agreement_of(other));
  other.dimensions = one.dimensions;
  other.dimensions.sliding_window = 64;
  EXPECT_NE(agreement_of(one), agreement_of(other));
}

TEST(ScalingOptionsTest, WhatCannotBeIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"--components=step", "--components 'step': must be one of full_step"},
      {"--size=huge", "--size 'huge'"},
      {"--dtype=f64", "--dtype: 'f64' must be one of f32"},
      {"--bucket-mb=0", "--bucket-mb: '0' must be from"},
      {"--compress=f64", "--compress: 'f64' must be one of none, bf16, f16"},
      {"--timeout=-1", "--timeout: '-1' must be"},
      {"--timeout=1e10", "--timeout: '1e10' must be from 0.1 to 1e+06"},
      {"--seq=1", "--seq: '1' must be an integer from 2 to"},
      {"--rounds=0", "--rounds: '0' must be an integer from 1 to"},
      {"--threads=5000", "--threads: '5000' must be an integer from 1 to 4096"},
      {"--batch=5000000000000000000", "batch = 5000000000000000000: must be between 1 and"},
      {"--max-bytes=3", "--max-bytes 3"},
      {"--verify=only", "--verify: 'only' must be one of before, off"}};
  for (const auto& [argument, part] : cases) EXPECT_CONTAINS(refusal({argument}), part);
  EXPECT_CONTAINS(refusal({"--shard-optimizer", "--dtype=amp_f16"}), "amp_f16");
  EXPECT_CONTAINS(refusal({"--compress=bf16", "--dtype=f16"}), "--compress bf16 with --dtype f16");
  EXPECT_CONTAINS(refusal({"--compress=f16", "--shard-optimizer"}),
                  "--compress f16 with --share zero1");
  EXPECT_CONTAINS(refusal({"--share=zero3", "--bucket-mb=5"}), "--bucket-mb with --share zero3");
  EXPECT_CONTAINS(refusal({"--share=tensor", "--bucket-mb=5"}), "--bucket-mb with --share tensor");
  EXPECT_CONTAINS(refusal({"--share=tensor", "--no-overlap"}), "--no-overlap with --share tensor");
}

TEST(ScalingOptionsTest, RanksAgreeOnWhatIsComputedAndNotOnWhereItGoes) {
  const auto one = agreement_of(parse({"--benchmark_out=a.json", "--timeout=5"}));
  EXPECT_EQ(one, agreement_of(parse({})));
  EXPECT_NE(one, agreement_of(parse({"--bucket-mb=1"})));
  EXPECT_NE(one, agreement_of(parse({"--seed=1"})));
}

TEST(ScalingOptionsTest, WhatRanksShareIsStatedOnceAndOnlyWhatIsProvedIsTaken) {
  EXPECT_EQ(parse({}).share, distributed::Share::ddp);
  EXPECT_EQ(parse({"--shard-optimizer"}).share, distributed::Share::zero1);
  EXPECT_EQ(parse({"--shard-optimizer", "--share=zero1"}).share, distributed::Share::zero1);
  EXPECT_CONTAINS(refusal({"--shard-optimizer", "--share=zero3"}),
                  "--shard-optimizer with --share zero3: it is short for --share zero1");
  EXPECT_CONTAINS(refusal({"--share=fsdp"}), "'fsdp' must be one of ddp, zero1, zero3, tensor");
  EXPECT_CONTAINS(refusal({"--share=tensor"}, 3), "--share tensor: n_heads 8 over 3 ranks");
  EXPECT_CONTAINS(refusal({"--share=zero3", "--dtype=amp_bf16"}), "--share zero3: ");
  EXPECT_CONTAINS(refusal({"--share=zero3", "--compress=bf16"}), "--compress bf16 with --share");
  EXPECT_NE(agreement_of(parse({"--share=zero3"})), agreement_of(parse({})));
  const Variant fused({Switch::fused_loss});
  EXPECT_EQ(distributed::variant_of_ranks(fused, distributed::Share::zero3), fused);
  EXPECT_THROW(distributed::variant_of_ranks(fused, distributed::Share::tensor),
               std::invalid_argument);
}

TEST(RandomOrderTest, EveryIndexComesOnceInTheSameOrderForTheSameNumbers) {
  std::set<std::vector<size_t>> orders;
  for (uint64_t round = 0; round < 20; ++round) {
    auto order = random_order(6, 1, round);
    EXPECT_EQ(order, random_order(6, 1, round));
    orders.insert(order);
    std::ranges::sort(order);
    EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2, 3, 4, 5}));
  }
  EXPECT_GT(orders.size(), 15U) << "rounds differ";
}

TEST(TimeIterationsTest, OnlyCallsAreTimedAndAllOfThem) {
  ProcessGroup alone({}, instruments::Device::select("cpu"), std::chrono::milliseconds(100), {});
  std::string order;
  const RankTimes times = time_together(
      alone, {.run = [&] { order += 'r'; }, .prepare = [&] { order += 'p'; }, .calls = 3}, 2);
  EXPECT_EQ(order, "prrrprrr");
  EXPECT_EQ(times.seconds.size(), 2U);
  EXPECT_EQ(agreed_iterations(alone, 0.5, 0.2), 3);
  EXPECT_EQ(agreed_iterations(alone, 0, 0), 1);
}

TEST(RankSamplesTest, TheSlowestRankMakesAnIteration) {
  EXPECT_DOUBLE_EQ(slowest_seconds({{1, 4}, {3, 2}}), 3.5);
  EXPECT_DOUBLE_EQ(mean_seconds({{1, 4}, {3, 2}}), 2.5);
  // An iteration of seconds does not make the step longer.
  EXPECT_DOUBLE_EQ(slowest_seconds({{1, 4, 2}, {3, 2, 4000}}), 4);
  EXPECT_DOUBLE_EQ(mean_seconds({{1, 4, 2}, {3, 2, 4000}}), 3);
  // Ranks that had nothing to do do not count.
  EXPECT_DOUBLE_EQ(slowest_seconds({{2}, {}}), 2);
  EXPECT_DOUBLE_EQ(mean_seconds({{2}, {}}), 2);
  EXPECT_THROW(slowest_seconds({{}, {}}), std::invalid_argument);
}

TEST(ScalingCountersTest, WeakScalingLosesToWhatTheModesShow) {
  ModeSamples round = {{StepMode::alone, {{8}, {}}},
                       {StepMode::local, {{9}, {11}}},
                       {StepMode::no_overlap, {{19}, {18}}},
                       {StepMode::overlap, {{15}, {16}}}};
  const harness::Counters expected = {{"weak_efficiency_percent", 50},
                                      {"loss_slower_local_percent", 12.5},
                                      {"loss_imbalance_percent", 6.25},
                                      {"loss_communication_percent", 31.25},
                                      {"overlap_percent", 37.5}};
  EXPECT_EQ(scaling_counters(round, StepMode::overlap, 2), expected);
  round[StepMode::no_overlap] = round[StepMode::local];
  EXPECT_FALSE(scaling_counters(round, StepMode::overlap, 2).contains("overlap_percent"))
      << "nothing is hidden where sums cost nothing";
}

TEST(ScalingCountersTest, StrongScalingAlsoLosesToSmallBatchesAndAllOfItAddsUp) {
  const ModeSamples round = {{StepMode::alone, {{5}, {}}},
                             {StepMode::alone_global, {{8}, {}}},
                             {StepMode::local, {{6}, {6.5}}},
                             {StepMode::overlap, {{8}, {7}}}};
  const auto counters = scaling_counters(round, StepMode::overlap, 2);
  EXPECT_DOUBLE_EQ(counters.at("strong_efficiency_percent"), 50);
  EXPECT_DOUBLE_EQ(counters.at("loss_small_batch_percent"), 12.5);
  double sum = 0;
  for (const auto& [name, value] : counters) {
    if (name.starts_with("loss_") || name == "strong_efficiency_percent") sum += value;
  }
  EXPECT_NEAR(sum, 100, 1e-9);
}

TEST(ScalingCountersTest, LayersThatRanksShareAreStrongScalingOfOneBatch) {
  const ModeSamples round = {{StepMode::alone, {{8}, {}}},
                             {StepMode::local, {{100}, {100}}},
                             {StepMode::tensor_local, {{5}, {6}}},
                             {StepMode::tensor, {{10}, {9}}}};
  const harness::Counters expected = {{"strong_efficiency_percent", 40},
                                      {"loss_slower_local_percent", 15},
                                      {"loss_imbalance_percent", 5},
                                      {"loss_communication_percent", 40}};
  EXPECT_EQ(scaling_counters(round, StepMode::tensor, 2), expected);
}

// Two collectives of an iteration each on two ranks: rank 1 comes 3 s later to the first, rank 0 a
// second later to the other, for which rank 1 begins to wait when all have come.
TEST(CollectiveWaitsTest, WaitingIsCutWhereTheLastRankArrives) {
  const CollectiveWaits found =
      split_waits({{{1, 1, 6}, {7, 7, 7.5}}, {{4, 4.5, 6}, {6, 7.25, 7.75}}}, 1);
  EXPECT_EQ(found.wait_seconds, (std::vector<double>{3, 0}));
  EXPECT_EQ(found.transfer_seconds, (std::vector<double>{2.5, 2}));
  EXPECT_EQ(found.times_last, (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(found.late_seconds, (std::vector<double>{3, 1}));
  EXPECT_EQ(last_rank_words({found}), "") << "none is the last most of the time";
  EXPECT_THROW(split_waits({{{1, 1, 1}}, {}}, 1), std::logic_error);
  EXPECT_EQ(last_rank_words({split_waits({{}, {}}, 1)}), "");
}

// Iterations of three ranks, of whom one may come late to each of its two collectives.
CollectiveWaits waits_of_three(std::optional<int> late_rank) {
  constexpr int64_t kIterations = 5;
  CollectiveWaits found;
  distributed::testing::run_ranks(3, [&](ProcessGroup& group) {
    const at::Tensor values = at::ones({1000});
    const RankTimes mine =
        time_together(group,
                      {.run =
                           [&] {
                             if (group.rank() == late_rank)
                               std::this_thread::sleep_for(std::chrono::milliseconds(30));
                             group.all_reduce(values).wait();
                           },
                       .calls = 2},
                      kIterations);
    EXPECT_EQ(mine.operations.size(), 10U) << "without the barriers between iterations";
    const CollectiveWaits waits = gather_waits(group, mine.operations, kIterations);
    group.all_reduce(values).wait();
    EXPECT_EQ(mine.operations.size(), 10U);
    if (group.rank() == 2) found = waits;
  });
  return found;
}

TEST(CollectiveWaitsTest, ADelayedRankIsNamedAndTheOthersWaitForIt) {
  const CollectiveWaits found = waits_of_three(1);
  EXPECT_EQ(found.times_last, (std::vector<int64_t>{0, 10, 0}));
  EXPECT_CONTAINS(last_rank_words({found, found}), "rank 1 arrives last in 20 of 20 collectives: ");
  for (const size_t rank : {0U, 2U}) EXPECT_GT(found.wait_seconds[rank], 0.05) << rank;
  EXPECT_LT(found.wait_seconds[1], 0.03);
  EXPECT_GT(found.clock_uncertainty_seconds, 0);
  // What it names is the delay: without one the others do not wait like that.
  for (const double seconds : waits_of_three(std::nullopt).wait_seconds) EXPECT_LT(seconds, 0.05);
}

// What a measurement is refused by where memory is short.
TEST(SharedStepTest, ARankHoldsNoMoreThanIsPredictedOfIt) {
  const std::pair<const char*, int> cases[] = {
      {"--share=zero1", 2}, {"--share=zero1", 4}, {"--share=zero3", 2}, {"--share=tensor", 2}};
  for (const auto& [share, ranks] : cases) {
    SCOPED_TRACE(std::string(share) + " of " + std::to_string(ranks));
    const ScalingOptions options = parse({"--size=tiny", "--batch=1", "--seq=8", share}, ranks);
    distributed::testing::run_ranks(ranks, [&](ProcessGroup& group) {
      TensorInitializer initializer(7, Dtype::f32, group.device().torch());
      const ModelConfig config(options.dimensions);
      const TokenBatch all = random_token_batch(config, group.size(), options.seq, initializer);
      const TokenBatch own = rows_of(all, group.rank(), 1);
      const int64_t before = distributed::testing::live_bytes(group);
      const auto step = make_shared_step(options, group, {all, own});
      const int64_t held = (distributed::testing::live_bytes(group) - before) / group.size();
      const int64_t predicted = shared_step_bytes(options, group.size(), c10::DeviceType::CPU);
      EXPECT_LE(held, predicted);
      EXPECT_GE(held, predicted / 3) << "of any use";
    });
  }
}

TEST(MessageSizesTest, SizesGrowByFourAndBucketsAreAmongThemInWholeShares) {
  EXPECT_EQ(message_sizes(20000, {5000, 16384, 30000}, 8),
            (std::vector<int64_t>{1024, 4096, 5000, 16384}));
  EXPECT_EQ(message_sizes(4096, {}, 12), (std::vector<int64_t>{1032, 4104}));
}

TEST(BusFactorTest, FactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 2), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, 2), 0.5);
}

}  // namespace
}  // namespace tinyllama::scaling

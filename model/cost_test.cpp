// What flop_proof_test.cpp, which holds the formulas to the oracle's and the profiler's counts,
// does not show of costs: bytes, elementwise FLOPs and names, for `tiny` at batch 8 x sequence 128.
#include "model/cost.hpp"

#include <gtest/gtest.h>

#include "model/train_step.hpp"

namespace tinyllama {
namespace {

const Workload kTiny{ModelConfig(), Variant(), Dtype::f32, 8, 128};

TEST(Cost, ByComponentByHand) {
  EXPECT_EQ(embedding_cost(kTiny, Pass::forward).model_flops, 0);
  // 1024 tokens of 8 bytes, 1000 rows of 1 KiB, 1024 rows written.
  EXPECT_EQ(embedding_cost(kTiny, Pass::forward).bytes, 1024 * 8 + 1000 * 1024 + 1024 * 1024);
  // 1 MiB in, 1 MiB out, 256 weights, 1024 row factors.
  EXPECT_EQ(rms_norm_cost(kTiny, Pass::forward).bytes, 2 * 1048576 + 1024 + 4096);
  EXPECT_EQ(rotary_cost(kTiny, Pass::forward).elementwise_flops, 3 * 1024 * (256 + 128));
  EXPECT_EQ(optimizer_cost(kTiny).elementwise_flops, 14 * 2'873'600LL);
  EXPECT_EQ(optimizer_cost(kTiny).bytes, 7 * 4 * 2'873'600LL);
  Workload bf16 = kTiny;
  bf16.dtype = Dtype::bf16;
  EXPECT_EQ(optimizer_cost(bf16).bytes, 7 * 2 * 2'873'600LL);
  Workload amp = kTiny;
  amp.dtype = Dtype::amp_bf16;
  EXPECT_EQ(optimizer_cost(amp).bytes, 7 * 4 * 2'873'600LL);
  EXPECT_EQ(model_cost(kTiny, Pass::forward).model_flops,
            model_cost(kTiny, Pass::forward_loss).model_flops);
}

TEST(Cost, PassNames) {
  EXPECT_EQ(parse_pass("forward_loss"), Pass::forward_loss);
  EXPECT_EQ(to_string(Pass::train), "train");
  EXPECT_THROW(parse_pass("sideways"), std::invalid_argument);
  EXPECT_THROW(parse_dtype("f8"), std::invalid_argument);
  EXPECT_THROW(Variant::parse("qvk"), std::invalid_argument);
}

// One numerator for every variant, and what really ran beside it.
TEST(Cost, SwitchesChangeHardwareFlopsAlone) {
  Workload workload = kTiny;
  workload.seq = 512;
  const auto cost = [&](std::initializer_list<Switch> switches, Pass pass) {
    workload.variant = Variant(switches);
    return model_cost(workload, pass);
  };
  for (const Pass pass : {Pass::forward_loss, Pass::forward_backward}) {
    const Cost baseline = cost({}, pass);
    EXPECT_EQ(baseline.hardware_flops, baseline.model_flops);
    EXPECT_LT(cost({Switch::sdpa}, pass).hardware_flops, baseline.model_flops);
    EXPECT_GE(cost({Switch::checkpoint}, pass).hardware_flops, baseline.model_flops);
    for (const auto switches : {std::initializer_list<Switch>{Switch::sdpa},
                                {Switch::checkpoint},
                                {Switch::fused_loss}}) {
      EXPECT_EQ(cost(switches, pass).model_flops, baseline.model_flops);
      EXPECT_EQ(cost(switches, pass).causal_flops, baseline.causal_flops);
    }
  }
}

// PaLM's estimate (Chowdhery et al., appendix B): 6 N + 12 L H Q T FLOPs a token of a training
// step, N all parameters, Q head_dim, T the sequence length. It counts the look-up as a product.
TEST(FullStepCost, WithTheLookUpItIsPalmsEstimateLessTheNorms) {
  for (const int64_t n_kv_heads : {1, 4, 8}) {
    const ModelConfig config({.n_kv_heads = n_kv_heads});
    const Workload workload{config, Variant(), Dtype::f32, 8, 128};
    const Cost cost = full_step_cost(workload);
    const int64_t norms = (2 * config.n_layers() + 1) * config.hidden_dim();
    const int64_t scores = 12 * config.n_layers() * config.hidden_dim() * workload.seq;
    EXPECT_EQ(cost.model_flops + cost.lookup_flops,
              workload.tokens() * (6 * (count_parameters(config) - norms) + scores));
  }
}

}  // namespace
}  // namespace tinyllama

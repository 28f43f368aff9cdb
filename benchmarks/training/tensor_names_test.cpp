#include "benchmarks/training/tensor_names.hpp"

#include <gtest/gtest.h>

namespace tinyllama::training {
namespace {

// Every product of two sizes is another number. T = 6, D = 16, KV D/H = 8.
Workload workload(Dtype dtype = Dtype::f32, Variant variant = Variant()) {
  return {ModelConfig({.vocab_size = 101,
                       .hidden_dim = 16,
                       .n_layers = 1,
                       .n_heads = 2,
                       .n_kv_heads = 1,
                       .intermediate_dim = 37}),
          variant, dtype, 2, 3};
}

constexpr int64_t kScores = 2 * 2 * 3 * 3;

TEST(TensorNamesTest, NamesTensorsByComponentAndBytes) {
  const TensorNames names(workload(), false);
  const auto name = [&](std::string_view component, int64_t elements) {
    return names.name({component, "aten::mm", Phase::forward}, elements * 4);
  };
  EXPECT_EQ(name("loss/lm_head", 6 * 101), "logits [B,S,V]");
  EXPECT_EQ(name("ffn/gate_up_proj", 6 * 37), "ffn intermediate [B,S,D_ff]");
  EXPECT_EQ(name("ffn/gate_up_proj", 6 * 2 * 37), "ffn intermediate [B,S,2 D_ff]");
  EXPECT_EQ(name("attention/qkv_proj", 6 * 8), "keys or values [B,S,KV,D/H]");
  EXPECT_EQ(name("embedding", 6 * 16), "embedded tokens [B,S,D]");
  EXPECT_EQ(name("embedding", 6 * 101), "embedding: aten::mm") << "logits are the head's";
}

TEST(TensorNamesTest, OfABackwardTheyAreGradients) {
  const TensorNames names(workload(), false);
  const auto name = [&](std::string_view component, std::string_view operation, int64_t elements) {
    return names.name({component, operation, Phase::backward}, elements * 4);
  };
  EXPECT_EQ(name("loss/cross_entropy", "aten::_log_softmax_backward_data", 6 * 101),
            "gradient of logits [B,S,V]");
  EXPECT_EQ(name("loss/cross_entropy", "aten::nll_loss_backward", 6 * 101),
            "gradient of log-probabilities [B,S,V]");
  EXPECT_EQ(name("embedding", "aten::embedding_dense_backward", 101 * 16),
            "gradient of embedding weight [V,D]");
  EXPECT_EQ(name("attention/core", "aten::_softmax_backward_data", kScores),
            "gradient of attention_scores [B,H,S,S]");
  EXPECT_EQ(name("attention/core", "aten::bmm", kScores),
            "gradient of attention_probabilities [B,H,S,S]");
}

TEST(TensorNamesTest, OutsideOperatorsThereIsNoOperatorToName) {
  const TensorNames names(workload(), false);
  EXPECT_EQ(names.name({"other", "", Phase::forward}, 3), "other: outside operators");
}

TEST(TensorNamesTest, ScoresAreNarrowOrWide) {
  const TensorNames names(workload(Dtype::bf16), false);
  const TensorOrigin softmax{"attention/core", "aten::_softmax", Phase::forward};
  EXPECT_TRUE(names.is_score_matrix(softmax, kScores * 2));
  EXPECT_TRUE(names.is_score_matrix(softmax, kScores * 4));
  EXPECT_FALSE(names.is_score_matrix(softmax, kScores * 8));
  EXPECT_FALSE(
      names.is_score_matrix({"ffn/swiglu", "aten::_softmax", Phase::forward}, kScores * 2));
}

TEST(TensorNamesTest, VariantsWithoutAScoreMatrixHaveNone) {
  const TensorNames names(workload(Dtype::f32, Variant({Switch::sdpa})), false);
  EXPECT_FALSE(
      names.is_score_matrix({"attention/core", "aten::_softmax", Phase::forward}, kScores * 4));
}

TEST(TensorNamesTest, AGpusAllocatorGivesMoreThanIsAskedFor) {
  const TensorOrigin head{"loss/lm_head", "aten::mm", Phase::forward};
  const TensorNames small(workload(), true);
  EXPECT_EQ(small.name(head, 2560), "logits [B,S,V]") << "2424, rounded up to 512";
  EXPECT_EQ(small.name(head, 2424), "loss/lm_head: aten::mm");
  Workload large = workload();
  large.batch = 2000;  // logits: 2,424,000 bytes
  const TensorNames names(large, true);
  EXPECT_EQ(names.name(head, 2'424'320 + (1 << 20)), "logits [B,S,V]");
  EXPECT_EQ(names.name(head, 2'424'320 + (1 << 20) + 512), "loss/lm_head: aten::mm");
}

}  // namespace
}  // namespace tinyllama::training

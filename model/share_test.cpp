// One rank's share: the ranks' shares add up to the whole model, in FLOPs and in values.
#include "model/share.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "model/testing.hpp"
#include "model/tiny_llama.hpp"

namespace tinyllama {
namespace {

constexpr int64_t B = 2, S = 5;

// Every feature that a share has to divide or to keep.
ModelDimensions whole_dimensions() {
  return {.vocab_size = 24,
          .hidden_dim = 12,
          .n_layers = 4,
          .n_heads = 8,
          .n_kv_heads = 4,
          .intermediate_dim = 16,
          .own_head_dim = 6,
          .qkv_bias = true,
          .mlp_bias = true,
          .qk_norm = true};
}

Workload workload_of(const ModelConfig& config) {
  return {config, Variant(), Dtype::f64, B, S};
}

using CostFunction = Cost (*)(const Workload&, Pass);

TEST(Share, FlopsOfAllRanksAreTheWholes) {
  const ModelConfig whole((whole_dimensions()));
  const std::pair<const char*, CostFunction> costs[] = {
      {"attention", attention_cost}, {"ffn", feed_forward_cost}, {"block", block_cost},
      {"embedding", embedding_cost}, {"loss", loss_cost},        {"model", model_cost}};
  for (const int64_t ranks : {2, 4}) {
    const ModelConfig share = share_of(whole, {.tensor = ranks});
    for (const auto& [name, cost] : costs) {
      for (const Pass pass : {Pass::forward, Pass::backward, Pass::forward_backward}) {
        const Cost one = cost(workload_of(share), pass), all = cost(workload_of(whole), pass);
        SCOPED_TRACE(std::string(name) + " " + std::string(to_string(pass)));
        EXPECT_EQ(ranks * one.model_flops, all.model_flops);
        EXPECT_EQ(ranks * one.causal_flops, all.causal_flops);
        EXPECT_EQ(ranks * one.hardware_flops, all.hardware_flops);
        EXPECT_EQ(ranks * one.lookup_flops, all.lookup_flops);
        EXPECT_EQ(all.comm_calls, 0);
      }
    }
  }
}

TEST(Share, KvHeadsOnSeveralRanksAreComputedByEachOfThem) {
  const ModelConfig whole((whole_dimensions()));
  const ModelConfig share = share_of(whole, {.tensor = 8});
  EXPECT_EQ(share.n_kv_heads(), 1);
  // K and V projections of four heads, by eight ranks.
  const int64_t again = 2 * B * S * whole.hidden_dim() * 2 * whole.kv_dim();
  EXPECT_EQ(8 * attention_cost(workload_of(share), Pass::forward).model_flops,
            attention_cost(workload_of(whole), Pass::forward).model_flops + again);
  // The two ranks of a KV head sum the gradients of weights and biases of K and V; beside them the
  // input's, and those of the two norms.
  const Cost backward = attention_cost(workload_of(share), Pass::backward);
  const int64_t kv_dim = 6;
  EXPECT_EQ(backward.comm_calls, 1 + 2 + 2 + 2);
  EXPECT_EQ(backward.comm_bytes, 8 * (B * S * 12 + 2 * kv_dim + 2 * 12 * kv_dim + 2 * kv_dim));
}

TEST(Share, FlopsOfAllStagesAreTheWholes) {
  const ModelConfig whole((whole_dimensions()));
  const ModelConfig stage = share_of(whole, {.pipeline = 2});
  EXPECT_EQ(stage.n_layers(), 2);
  for (const Pass pass : {Pass::forward, Pass::forward_backward}) {
    const Workload w = workload_of(whole);
    const Cost all = 2 * layers_cost(workload_of(stage), pass) + embedding_cost(w, pass) +
                     rms_norm_cost(w, pass);
    const Cost head = loss_cost(w, pass);
    EXPECT_EQ(all.model_flops + head.model_flops, model_cost(w, pass).model_flops);
    EXPECT_EQ(all.parameters + head.parameters, count_parameters(whole));
  }
  // Hidden states in and out, and their gradients.
  EXPECT_EQ(layers_cost(workload_of(stage), Pass::forward_backward).comm_calls, 4);
  EXPECT_EQ(layers_cost(workload_of(stage), Pass::forward_backward).comm_bytes,
            4 * B * S * whole.hidden_dim() * 8);
}

TEST(Share, CommunicationOfALayerIsMegatrons) {
  ModelDimensions dimensions = whole_dimensions();
  dimensions.qk_norm = false;
  const ModelConfig share = share_of(ModelConfig(dimensions), {.tensor = 2});
  const Cost block = block_cost(workload_of(share), Pass::forward_backward);
  EXPECT_EQ(block.comm_calls, 4);
  EXPECT_EQ(block.comm_bytes, 4 * B * S * dimensions.hidden_dim * 8);
  EXPECT_EQ(embedding_cost(workload_of(share), Pass::forward_backward).comm_calls, 1);
  EXPECT_EQ(loss_cost(workload_of(share), Pass::forward).comm_calls, 3);
  EXPECT_EQ(loss_cost(workload_of(share), Pass::forward).comm_bytes, 3 * B * S * 4);
  EXPECT_EQ(loss_cost(workload_of(share), Pass::backward).comm_calls, 1);
}

// The part of a whole parameter that a rank holds: what of each dimension is smaller, at the rank's
// place; KV heads that several ranks hold, at theirs.
at::Tensor part_of(const at::Tensor& whole, const at::Tensor& own, int64_t rank, int64_t ranks) {
  at::Tensor part = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    const int64_t parts = whole.size(dim) / own.size(dim);
    if (parts > 1) part = part.narrow(dim, rank * parts / ranks * own.size(dim), own.size(dim));
  }
  return part;
}

void copy_part(const NamedTensors& from, const NamedTensors& to, int64_t rank, int64_t ranks) {
  const at::NoGradGuard no_grad;
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < to.size(); ++i) {
    ASSERT_EQ(from[i].first, to[i].first);
    to[i].second.copy_(part_of(from[i].second, to[i].second, rank, ranks));
  }
}

class SharesAddUp : public ::testing::TestWithParam<int64_t> {
 protected:
  const int64_t ranks = GetParam();
  ModelConfig whole{whole_dimensions()};
  ModelConfig share = share_of(whole, {.tensor = ranks});
  TensorInitializer initializer{7, Dtype::f64, c10::kCPU};
  at::Tensor x = initializer.normal({B, S, whole.hidden_dim()});
  at::Tensor tokens = initializer.tokens({B, S}, whole.vocab_size());

  static void expect_equal(const at::Tensor& sum, const at::Tensor& all) {
    EXPECT_TRUE(sum.allclose(all, 1e-12, 1e-14)) << (sum - all).abs().max();
  }
};

TEST_P(SharesAddUp, Attention) {
  const Attention all(whole, Variant(), initializer);
  const RotaryTable rotary(whole, Variant(), S, Dtype::f64, c10::kCPU);
  const auto mask = [](const ModelConfig& config) {
    return attention_mask(config, Variant(), S, Dtype::f64, c10::kCPU);
  };
  at::Tensor sum = at::zeros_like(x);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Attention one(share, Variant(), initializer);
    copy_part(all.parameters(""), one.parameters(""), rank, ranks);
    sum = sum + one.forward(x, rotary, mask(share));
  }
  expect_equal(sum, all.forward(x, rotary, mask(whole)));
}

TEST_P(SharesAddUp, FeedForward) {
  const FeedForward all(whole, Variant(), initializer);
  // Every rank has the bias behind the all-reduce, which adds it once.
  const at::Tensor bias = all.parameters("").back().second;
  at::Tensor sum = (1 - ranks) * bias;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const FeedForward one(share, Variant(), initializer);
    copy_part(all.parameters(""), one.parameters(""), rank, ranks);
    sum = sum + one.forward(x);
  }
  expect_equal(sum, all.forward(x));
}

TEST_P(SharesAddUp, Embedding) {
  const Embedding all(whole, initializer);
  at::Tensor sum = at::zeros_like(x);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Embedding one(share, initializer);
    copy_part(all.parameters(""), one.parameters(""), rank, ranks);
    // The first rank's tokens come first: those of another one are moved there.
    const at::Tensor moved = tokens - rank * share.vocab_size();
    sum = sum + one.forward(at::where(moved.lt(0), share.vocab_size(), moved));
  }
  expect_equal(sum, all.forward(tokens));
}

TEST_P(SharesAddUp, Logits) {
  const LmHead all(whole, Variant(), initializer);
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const LmHead one(share, Variant(), initializer);
    copy_part(all.parameters(""), one.parameters(""), rank, ranks);
    parts.push_back(one.forward(x));
  }
  expect_equal(at::cat(parts, -1), all.forward(x));
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharesAddUp, ::testing::Values(2, 4, 8));

TEST(Share, ALossIsOfTheRanksLogits) {
  const ModelConfig share = share_of(ModelConfig(whole_dimensions()), {.tensor = 4});
  TensorInitializer initializer(7, Dtype::f64, c10::kCPU);
  const at::Tensor x = initializer.normal({B, S, share.hidden_dim()});
  const at::Tensor targets = next_token_targets(initializer.tokens({B, S}, share.token_count()));
  EXPECT_GE(targets.max().item<int64_t>(), share.vocab_size());
  const LmHead head(share, Variant(), initializer);
  const at::Tensor own = at::where(targets.eq(kIgnoredTarget), targets, targets.remainder(6));
  EXPECT_TRUE(head.loss(x, targets).equal(next_token_loss(head.forward(x), own)));
}

TEST(Share, WhatDoesNotDivideIsNamed) {
  const ModelConfig whole((whole_dimensions()));
  const auto message = [&](const Parallelism& ranks) {
    try {
      share_of(whole, ranks);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message({.tensor = 3}), "tensor-parallel 3: must divide n_heads = 8, but 8 % 3 = 2");
  EXPECT_CONTAINS(message({.tensor = 16}), "must divide n_heads = 8");
  EXPECT_EQ(message({.pipeline = 5}), "pipeline-parallel 5: must be at most n_layers = 4");
  EXPECT_CONTAINS(message({.tensor = 0}), "must be at least 1");
  ModelDimensions six = whole_dimensions();
  six.n_heads = six.n_kv_heads = 6;
  six.n_heads = 12;
  try {
    share_of(ModelConfig(six), {.tensor = 4});
    ADD_FAILURE();
  } catch (const std::invalid_argument& error) {
    EXPECT_CONTAINS(error.what(), "must divide n_kv_heads = 6");
  }
  EXPECT_EQ(share_of(whole, {}), whole);
}

}  // namespace
}  // namespace tinyllama

#include "benchmarks/harness/rank_on_meta.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

at::Tensor on_meta(int64_t rows, int64_t columns) {
  return at::empty({rows, columns}, at::TensorOptions().device(c10::DeviceType::Meta));
}

TEST(PlaceInWorldTest, GroupsAreOfThoseWithTheSameShare) {
  const auto group = [](int64_t rank) {
    const PlaceInWorld place{24, rank, {.tensor = 4, .pipeline = 2}};
    return std::tuple(place.group_size(), place.group_start(), place.group_stride());
  };
  EXPECT_EQ(group(0), std::tuple(3, 0, 4));
  EXPECT_EQ(group(11), std::tuple(3, 3, 4));
  EXPECT_EQ(group(12), std::tuple(3, 12, 4));
  EXPECT_EQ(group(17), std::tuple(3, 13, 4));
  const PlaceInWorld alone{1024, 17};
  EXPECT_EQ(std::tuple(alone.group_size(), alone.group_start(), alone.group_stride()),
            std::tuple(1024, 0, 1));
}

// Without a message the trace of a step would lack a part of it.
TEST(RankOnMetaTest, EveryBucketIsReducedAndAMissingOneIsAnError) {
  // 1 MiB and 4 MiB: two buckets
  const NamedTensors parameters = {{"a", on_meta(1024, 1024).requires_grad_(true)},
                                   {"b", on_meta(1024, 256).requires_grad_(true)}};
  RankOnMeta rank({.world = 4, .rank = 3}, /*vocab_size=*/8);
  EXPECT_EQ(rank.hooks(), nullptr) << "each has whole layers";
  rank.sum_gradients(parameters);
  const at::Tensor x = on_meta(8, 1024);
  const auto step = [&](bool with_b) {
    rank.begin_backward();
    at::Tensor y = at::mm(x, parameters[0].second);
    if (with_b) y = at::mm(y, parameters[1].second);
    torch::autograd::backward({y.sum()});
    rank.end_backward();
  };
  step(true);
  step(true);
  EXPECT_EQ(parameters[0].second.grad().sizes(), parameters[0].second.sizes());
  EXPECT_CONTAINS(testing::error_of<std::logic_error>([&] { step(false); }),
                  "of 2 buckets of gradients were reduced");
}

}  // namespace
}  // namespace tinyllama::harness

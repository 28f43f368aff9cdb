#include "benchmarks/distributed/gradient_buckets.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace tinyllama::distributed {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// float32 tensors of so many KiB each.
NamedTensors parameters_of(std::initializer_list<int64_t> sizes_KiB) {
  NamedTensors parameters;
  for (const int64_t size : sizes_KiB)
    parameters.emplace_back(fmt::format("p{}", parameters.size()), at::zeros({size * 256}));
  return parameters;
}

using Range = std::pair<size_t, size_t>;

TEST(GradientBucketsTest, TheLastParameterComesFirst) {
  const auto buckets = plan_buckets(parameters_of({4, 4, 4}), kMiB);
  EXPECT_EQ(buckets, (GradientBuckets{{2, 1, 0}}));
}

TEST(GradientBucketsTest, TheFirstBucketIsSmallAndOthersAreFilled) {
  const NamedTensors parameters = parameters_of({1024, 1024, 1024, 512, 512});
  const auto buckets = plan_buckets(parameters, 2 * kMiB);
  EXPECT_EQ(buckets, (GradientBuckets{{4, 3}, {2, 1}, {0}}));
  EXPECT_EQ(bucket_bytes(parameters, buckets), (std::vector<int64_t>{kMiB, 2 * kMiB, kMiB}));
}

TEST(GradientBucketsTest, ALargeParameterTravelsAlone) {
  const auto buckets = plan_buckets(parameters_of({16, 8192, 16, 16}), 2 * kMiB);
  EXPECT_EQ(buckets, (GradientBuckets{{3, 2}, {1}, {0}}));
}

TEST(GradientBucketsTest, TypesAreNotMixed) {
  NamedTensors parameters = parameters_of({4, 4});
  parameters.emplace_back("half", at::zeros({8}, c10::ScalarType::Half));
  EXPECT_EQ(plan_buckets(parameters, kMiB), (GradientBuckets{{2}, {1, 0}}));
}

TEST(GradientBucketsTest, EveryParameterIsInOneBucketWhateverTheSize) {
  const NamedTensors parameters = parameters_of({7, 300, 1, 2048, 64, 64, 900, 3});
  for (const int64_t bytes : {int64_t{1}, 64 * int64_t{1024}, kMiB, 100 * kMiB}) {
    std::vector<int> found(parameters.size(), 0);
    for (const auto& bucket : plan_buckets(parameters, bytes)) {
      for (const size_t index : bucket) ++found.at(index);
    }
    EXPECT_EQ(found, std::vector<int>(parameters.size(), 1)) << bytes;
  }
  EXPECT_THROW(plan_buckets(parameters, 0), std::invalid_argument);
}

TEST(BucketQueueTest, BucketsStartInTheirOrder) {
  BucketQueue queue({{3, 2}, {1}, {0}});
  EXPECT_EQ(queue.complete(3), Range(0, 0));
  EXPECT_EQ(queue.complete(1), Range(0, 0));  // complete, but not its turn
  EXPECT_EQ(queue.complete(2), Range(0, 2));
  EXPECT_EQ(queue.missing(), std::vector<size_t>{0});
  EXPECT_EQ(queue.complete(0), Range(2, 3));
  EXPECT_TRUE(queue.missing().empty());
}

TEST(BucketQueueTest, EveryBackwardStartsAnew) {
  BucketQueue queue({{1, 0}});
  queue.complete(0);
  EXPECT_THROW(queue.complete(0), std::logic_error);
  queue.begin();
  EXPECT_EQ(queue.complete(0), Range(0, 0));
  EXPECT_EQ(queue.complete(1), Range(0, 1));
}

}  // namespace
}  // namespace tinyllama::distributed

#include "model/caching_allocator.hpp"

#include <gtest/gtest.h>

namespace tinyllama {
namespace {

constexpr int64_t kMiB = 1 << 20;
using Events = std::vector<AllocationEvent>;

Events end_of(int64_t block) {
  return {{block, 0}};
}

Events joined(std::initializer_list<Events> parts) {
  Events all;
  for (const Events& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(CachingAllocator, SegmentsAreOfThreeKinds) {
  EXPECT_EQ(segment_bytes({}), 0);
  EXPECT_EQ(segment_bytes({{0, 1}}), 2 * kMiB);
  EXPECT_EQ(segment_bytes({{0, kMiB}}), 2 * kMiB);
  EXPECT_EQ(segment_bytes({{0, kMiB + 1}}), 20 * kMiB);
  EXPECT_EQ(segment_bytes({{0, 10 * kMiB - 512}}), 20 * kMiB);
  EXPECT_EQ(segment_bytes({{0, 10 * kMiB}}), 10 * kMiB);
  EXPECT_EQ(segment_bytes({{0, 11 * kMiB}}), 12 * kMiB);
}

TEST(CachingAllocator, WhatIsLeftOfABlockIsSplitOff) {
  // 2 MiB hold 4096 blocks of 512 bytes, and no more.
  Events many;
  for (int64_t block = 0; block < 4096; ++block) many.push_back({block, 500});
  EXPECT_EQ(segment_bytes(many), 2 * kMiB);
  many.push_back({4096, 1});
  EXPECT_EQ(segment_bytes(many), 4 * kMiB);
  // Of a large block a rest of 1 MiB stays unused, one byte more is split off.
  EXPECT_EQ(segment_bytes({{0, 12 * kMiB}, {0, 0}, {1, 11 * kMiB}, {2, 12 * kMiB}}), 24 * kMiB);
  EXPECT_EQ(segment_bytes({{0, 16 * kMiB}, {0, 0}, {1, 5 * kMiB}, {2, 5 * kMiB}, {3, 5 * kMiB}}),
            16 * kMiB);
}

TEST(CachingAllocator, NeighboursAreJoinedAndTheBestFitIsTaken) {
  const Events three = {{0, 6 * kMiB}, {1, 6 * kMiB}, {2, 6 * kMiB}};
  // In one segment of 20 MiB; two freed neighbours make room for one of 9 MiB.
  EXPECT_EQ(segment_bytes(joined({three, end_of(0), end_of(1), {{3, 9 * kMiB}}})), 20 * kMiB);
  EXPECT_EQ(segment_bytes(joined({three, end_of(1), end_of(0), {{3, 9 * kMiB}}})), 20 * kMiB);
  // Two that are no neighbours do not.
  EXPECT_EQ(segment_bytes(joined({three, end_of(0), end_of(2), {{3, 9 * kMiB}}})), 40 * kMiB);
}

TEST(CachingAllocator, IdleSegmentsGoBackWhereMemoryIsShort) {
  const Events grown = {{0, 30 * kMiB}, {0, 0}, {1, 40 * kMiB}};
  EXPECT_EQ(segment_bytes(grown), 70 * kMiB);
  EXPECT_EQ(segment_bytes(grown, 69 * kMiB), 40 * kMiB);
  EXPECT_EQ(segment_bytes(grown, 39 * kMiB), std::nullopt);
  // One in which anything lives cannot: 30 MiB of 32 are free, and of no use.
  const Events pinned = {{0, 32 * kMiB}, {0, 0}, {1, 2 * kMiB}, {2, 40 * kMiB}};
  EXPECT_EQ(segment_bytes(pinned, 71 * kMiB), std::nullopt);
  EXPECT_EQ(segment_bytes(pinned, 72 * kMiB), 72 * kMiB);
}

TEST(CachingAllocator, ACaptureHasSegmentsOfItsOwn) {
  const Events warm = {{0, 2 * kMiB}, {1, 30 * kMiB}, {1, 0}};
  // What the warm-up left is given back before, and the rest of a segment in use is of no use.
  EXPECT_EQ(segment_bytes(joined({warm, {kCaptureBegins}, {{2, 40 * kMiB}}})), 60 * kMiB);
  EXPECT_EQ(segment_bytes(joined({warm, {kCaptureBegins}, {{2, 3 * kMiB}}})), 50 * kMiB);
  // From then on nothing is.
  const Events captured = {{2, 30 * kMiB}, {2, 0}, {3, 40 * kMiB}};
  EXPECT_EQ(segment_bytes(joined({warm, {kCaptureBegins}, captured}), 89 * kMiB), std::nullopt);
  EXPECT_EQ(segment_bytes(joined({warm, {kCaptureBegins}, captured}), 90 * kMiB), 90 * kMiB);
  EXPECT_EQ(segment_bytes(joined({warm, captured}), 60 * kMiB), 60 * kMiB);
}

}  // namespace
}  // namespace tinyllama

#include "benchmarks/training/component_map.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tinyllama::training {
namespace {

TEST(ComponentMapTest, NumbersOfARangeGoFromItsBeginToBeforeItsEnd) {
  ComponentMap map;
  map.enter("embedding", 10);
  map.leave(13);
  map.enter("rms_norm", 20);
  map.leave(25);
  EXPECT_EQ(map.of_sequence(9), "other");
  EXPECT_EQ(map.of_sequence(10), "embedding");
  EXPECT_EQ(map.of_sequence(12), "embedding");
  EXPECT_EQ(map.of_sequence(13), "other");
  EXPECT_EQ(map.of_sequence(20), "rms_norm");
  EXPECT_EQ(map.of_sequence(24), "rms_norm");
  EXPECT_EQ(map.of_sequence(25), "other");
}

TEST(ComponentMapTest, TheInnermostRangeCounts) {
  ComponentMap map;
  map.enter("evaluation", 0);
  map.enter("attention/core", 2);
  map.leave(5);
  map.leave(7);
  EXPECT_EQ(map.of_sequence(1), "evaluation");
  EXPECT_EQ(map.of_sequence(2), "attention/core");
  EXPECT_EQ(map.of_sequence(4), "attention/core");
  EXPECT_EQ(map.of_sequence(5), "evaluation");
  EXPECT_EQ(map.of_sequence(7), "other");
}

TEST(ComponentMapTest, CurrentIsTheInnermostOpenRange) {
  ComponentMap map;
  EXPECT_EQ(map.current(), "other");
  map.enter("evaluation", 0);
  map.enter("ffn/swiglu", 0);
  EXPECT_EQ(map.current(), "ffn/swiglu");
  map.leave(1);
  EXPECT_EQ(map.current(), "evaluation");
  map.leave(1);
  EXPECT_EQ(map.current(), "other");
}

TEST(ComponentMapTest, RangesWithoutNodesOwnNone) {
  ComponentMap map;
  map.enter("embedding", 3);
  map.leave(3);
  map.enter("residual", 3);
  map.enter("rms_norm", 3);
  map.leave(3);
  map.leave(4);
  EXPECT_EQ(map.of_sequence(3), "residual");
  EXPECT_EQ(map.of_sequence(4), "other");
}

TEST(ComponentMapTest, NodesWithoutANumberBelongToNobody) {
  ComponentMap map;
  map.enter("embedding", 0);
  EXPECT_EQ(map.of_sequence(-1), "other");
}

TEST(ComponentMapTest, ClearForgetsClosedRangesAndKeepsOpenOnes) {
  ComponentMap map;
  map.enter("embedding", 0);
  map.leave(5);
  map.enter("rms_norm", 6);
  map.clear();
  EXPECT_EQ(map.of_sequence(3), "other");
  EXPECT_EQ(map.of_sequence(6), "rms_norm");
  EXPECT_EQ(map.current(), "rms_norm");
  map.leave(8);
  map.clear();
  EXPECT_EQ(map.of_sequence(6), "other");
}

TEST(ComponentMapTest, LeavingWhatWasNotEnteredIsAnError) {
  ComponentMap map;
  EXPECT_THROW(map.leave(0), std::logic_error);
}

}  // namespace
}  // namespace tinyllama::training

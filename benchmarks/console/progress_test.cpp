#include "benchmarks/console/progress.hpp"

#include <gtest/gtest.h>

namespace tinyllama::console {
namespace {

// Standard error is no terminal here: a line is said, a status is not shown.
TEST(ProgressTest, SaysEachPieceWithItsNumberAndNothingElse) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress("case");
    progress.expect("peak", 5);
    progress.expect("case", 0.5, 2);
    progress.start("a");
    progress.finish("peak", 5, "a  1 ms");
    progress.say("note");
    progress.start("b");
    progress.finish("case", 0.5);
    progress.clear();
    progress.finish("case", 0.5, "c  2 ms");
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "[1/3] a  1 ms\nnote\n[3/3] c  2 ms\n");
}

TEST(ProgressTest, OneThatIsNotHeardIsSilent) {
  ::testing::internal::CaptureStderr();
  Progress progress("step", false);
  progress.expect("step");
  progress.say("note");
  progress.finish("step", 1, "done");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace tinyllama::console

#include "model/relative_error.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

namespace tinyllama {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

LargestError error_of(const std::vector<double>& actual, const std::vector<double>& expected) {
  return largest_error(actual, expected);
}

TEST(LargestError, IsRelativeToTheLargestMagnitudeAndNamesItsIndex) {
  const LargestError error = error_of({1.0, -4.5, 2.0}, {1.5, -4.0, 2.0});
  EXPECT_DOUBLE_EQ(error.relative, 0.125);
  EXPECT_EQ(error.index, 0U);
  EXPECT_EQ(error_of({1, 2, 3}, {1, 2, 3.5}).index, 2U);
  EXPECT_EQ(error_of({1, 2}, {1, 2}).relative, 0);
}

TEST(LargestError, ZerosHaveToBeZero) {
  EXPECT_EQ(error_of({0, 0}, {0, -0.0}).relative, 0);
  EXPECT_EQ(error_of({0, 1e-300}, {0, 0}).relative, kInfinity);
}

TEST(LargestError, NotANumberNeverPasses) {
  const double nan = std::nan("");
  EXPECT_EQ(error_of({nan}, {1}).relative, kInfinity);
  EXPECT_EQ(error_of({1}, {nan}).relative, kInfinity);
  EXPECT_EQ(error_of({nan}, {nan}).relative, kInfinity);
  EXPECT_EQ(error_of({kInfinity}, {kInfinity}).relative, kInfinity);
}

TEST(LargestError, LengthsHaveToAgree) {
  EXPECT_THROW(error_of({1}, {1, 2}), std::logic_error);
}

}  // namespace
}  // namespace tinyllama

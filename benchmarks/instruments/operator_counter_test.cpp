#include "benchmarks/instruments/operator_counter.hpp"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace tinyllama::instruments {
namespace {

class OperatorCounterTest : public ::testing::Test {
 protected:
  at::Tensor a_ = at::ones({4, 4});
  at::Tensor b_ = at::ones({4, 4});
};

TEST_F(OperatorCounterTest, CountsKnownExpressions) {
  EXPECT_EQ(count_operators([] {}), 0);
  EXPECT_EQ(count_operators([&] { a_.add(b_); }), 1);
  EXPECT_EQ(count_operators([&] { a_.add(b_).mul(b_).neg(); }), 3);
}

TEST_F(OperatorCounterTest, CountsOperatorsThatOthersCall) {
  // matmul of two matrices is mm and itself.
  const int64_t of_mm = count_operators([&] { a_.mm(b_); });
  EXPECT_EQ(count_operators([&] { a_.matmul(b_); }), of_mm + 1);
}

TEST_F(OperatorCounterTest, CountsOtherThreads) {
  EXPECT_EQ(count_operators([&] { std::thread([&] { a_.add(b_); }).join(); }), 1);
}

TEST_F(OperatorCounterTest, CountsTheBackwardPass) {
  a_.requires_grad_(true);
  const int64_t forward = count_operators([&] { a_.mul(b_).sum(); });
  const int64_t both = count_operators([&] { a_.mul(b_).sum().backward(); });
  EXPECT_GT(both, forward);
}

TEST_F(OperatorCounterTest, StopsCountingWhenTheWorkThrows) {
  EXPECT_THROW(count_operators([] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(count_operators([&] { a_.add(b_); }), 1);
}

}  // namespace
}  // namespace tinyllama::instruments

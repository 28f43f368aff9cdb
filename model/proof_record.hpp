// What a test proves, for the table that scripts/prove writes: GoogleTest's report carries it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "model/relative_error.hpp"

namespace tinyllama::testing {

/// One row of results/PROOF.md: it collects the errors of a test's comparisons and hands the
/// largest to GoogleTest's report when it ends.
class ProofRecord {
 public:
  /// `check`: what is proved; `against`: what it is compared with; `tolerance`: largest error
  /// allowed; 0 for figures that must be equal.
  ProofRecord(std::string check, std::string against, double tolerance)
      : check_(std::move(check)), against_(std::move(against)), tolerance_(tolerance) {}
  ~ProofRecord() {
    const auto record = [](const char* key, const std::string& value) {
      ::testing::Test::RecordProperty(key, value);
    };
    record("proof_check", check_);
    record("proof_against", against_);
    record("proof_tolerance", fmt::format("{:g}", tolerance_));
    record("proof_largest_error", fmt::format("{:.3g}", largest_error_));
    record("proof_worst", worst_);
    record("proof_comparisons", fmt::format("{}", comparisons_));
  }
  ProofRecord(const ProofRecord&) = delete;
  ProofRecord& operator=(const ProofRecord&) = delete;

  /// Takes the error of one comparison; a test failure naming `what` where it is over the
  /// tolerance.
  void expect(double error, const std::string& what) {
    ++comparisons_;
    EXPECT_LE(error, tolerance_) << what;
    if (error > largest_error_ || worst_.empty()) worst_ = what;
    largest_error_ = std::max(largest_error_, error);
  }
  void expect_equal_values(const at::Tensor& actual, const at::Tensor& expected,
                           const std::string& name) {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
    const LargestError error = tinyllama::largest_error(to_values(actual), to_values(expected));
    expect(error.relative, fmt::format("{}[{}]", name, error.index));
  }
  /// Relative difference of two counts, of which the second is the expected one.
  void expect_equal_counts(int64_t actual, int64_t expected, const std::string& name) {
    const double difference = static_cast<double>(std::abs(actual - expected));
    const double scale = static_cast<double>(std::max<int64_t>(1, std::abs(expected)));
    expect(difference / scale, fmt::format("{}: {}, expected {}", name, actual, expected));
  }

  int64_t comparisons() const { return comparisons_; }

 private:
  std::string check_;
  std::string against_;
  double tolerance_;
  double largest_error_ = 0;
  std::string worst_;
  int64_t comparisons_ = 0;
};

}  // namespace tinyllama::testing

// What a test proves, for the table that scripts/dev/prove writes: GoogleTest's report carries it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "model/relative_error.hpp"

namespace tinyllama::testing {

/// What a row of results/PROOF.md says beforehand.
struct Claim {
  std::string section;  ///< heading of the table
  std::string check;    ///< what is proved
  std::string against;  ///< the independent program or count that it is compared with
  double tolerance;     ///< largest error allowed; 0 for figures that must be equal
};

/// One row of results/PROOF.md: collects the errors of a test's comparisons and hands the largest
/// to GoogleTest's report when it ends.
class ProofRecord {
 public:
  explicit ProofRecord(Claim claim) : claim_(std::move(claim)) {}
  ~ProofRecord() {
    const auto* result = ::testing::UnitTest::GetInstance()->current_test_info()->result();
    const nlohmann::json row = {{"section", claim_.section},
                                {"check", claim_.check},
                                {"against", claim_.against},
                                {"tolerance", claim_.tolerance},
                                // as text, since JSON has no infinity
                                {"largest_error", fmt::format("{:.17g}", largest_error_)},
                                {"worst", worst_},
                                {"comparisons", comparisons_}};
    ::testing::Test::RecordProperty(fmt::format("proof_{}", result->test_property_count()),
                                    row.dump());
  }
  ProofRecord(const ProofRecord&) = delete;
  ProofRecord& operator=(const ProofRecord&) = delete;

  /// Takes the error of one comparison; a test failure naming `what` where it is over the
  /// tolerance.
  void expect(double error, const std::string& what) {
    ++comparisons_;
    EXPECT_LE(error, claim_.tolerance) << what;
    if (worst_.empty() || !(error <= largest_error_)) worst_ = what;
    largest_error_ = std::max(largest_error_, std::isnan(error) ? INFINITY : error);
  }
  /// Tensors of one shape, their difference relative to the largest magnitude expected.
  void expect_equal_values(const at::Tensor& actual, const at::Tensor& expected,
                           const std::string& name) {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
    const LargestError error = tinyllama::largest_error(to_values(actual), to_values(expected));
    expect(error.relative, fmt::format("{}[{}]", name, error.index));
  }
  /// Many comparisons at once, of which none may be wrong.
  void expect_none_wrong(int64_t comparisons, int64_t wrong, const std::string& what) {
    expect(static_cast<double>(wrong), what);
    comparisons_ += comparisons - 1;
  }
  /// Counts, their difference relative to the expected one.
  void expect_equal_counts(int64_t actual, int64_t expected, const std::string& name) {
    const auto difference = static_cast<double>(std::abs(actual - expected));
    const auto scale = static_cast<double>(std::max<int64_t>(1, std::abs(expected)));
    expect(difference / scale, fmt::format("{}: {}, expected {}", name, actual, expected));
  }

 private:
  Claim claim_;
  double largest_error_ = 0;
  std::string worst_;
  int64_t comparisons_ = 0;
};

}  // namespace tinyllama::testing

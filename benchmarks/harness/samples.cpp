#include "benchmarks/harness/samples.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace tinyllama::harness {
namespace {

constexpr double kEachTail = 0.025;

// Values below the interval (and above it), of n sorted ones: the largest k for which
// P(Binomial(n, 1/2) <= k - 1) <= 2.5 %.
size_t values_outside(size_t n) {
  const auto count = static_cast<double>(n);
  // The normal approximation, rounded down, is exact or one rank wider there (compared up to 6000);
  // the sum would take as long as the samples, and 2^-n is no double from n = 1075 on.
  constexpr size_t many = 500;
  if (n > many) return static_cast<size_t>((count - 1.96 * std::sqrt(count)) / 2);
  double probability = std::pow(0.5, count);
  double below = probability;
  size_t outside = 0;
  while (below <= kEachTail) {
    ++outside;
    const auto k = static_cast<double>(outside);
    probability *= (count - k + 1) / k;
    below += probability;
  }
  return outside;
}

}  // namespace

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  if (values.empty()) throw std::invalid_argument("median of no values");
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double standard_deviation(const std::vector<double>& values) {
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

std::optional<Interval> median_interval(std::vector<double> values) {
  const size_t outside = values_outside(values.size());
  if (outside == 0) return std::nullopt;
  std::sort(values.begin(), values.end());
  return Interval{values[outside - 1], values[values.size() - outside]};
}

std::optional<double> median_precision(const std::vector<double>& values) {
  const auto interval = median_interval(values);
  if (!interval) return std::nullopt;
  return (interval->high - interval->low) / 2 / median(values);
}

std::vector<double> thinned(const std::vector<double>& values, size_t most) {
  if (values.size() <= most) return values;
  std::vector<double> kept;
  kept.reserve(most);
  for (size_t i = 0; i < most; ++i) kept.push_back(values[i * values.size() / most]);
  return kept;
}

}  // namespace tinyllama::harness

#include "core/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <stdexcept>

namespace tinyllama {
namespace {

// Medians of batches of consecutive values, all of about the same size.
std::vector<double> batch_medians(const std::vector<double>& values, size_t batches) {
  std::vector<double> medians;
  for (size_t i = 0; i < batches; ++i) {
    const auto begin = values.begin() + static_cast<int64_t>(i * values.size() / batches);
    const auto end = values.begin() + static_cast<int64_t>((i + 1) * values.size() / batches);
    medians.push_back(median({begin, end}));
  }
  return medians;
}

// Lag-1 autocorrelation, corrected for the bias of -1/n that estimates from n values have.
double autocorrelation(const std::vector<double>& values) {
  const double middle = mean(values);
  double squares = 0;
  double products = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    squares += (values[i] - middle) * (values[i] - middle);
    if (i > 0) products += (values[i] - middle) * (values[i - 1] - middle);
  }
  return squares > 0 ? products / squares + 1 / static_cast<double>(values.size()) : 0;
}

// The 97.5 % point of Student's t; for 5 and more degrees within 0.011 %, by the expansion about
// the normal distribution's (Abramowitz and Stegun, 26.7.5).
double student_t(size_t degrees) {
  constexpr double exact[] = {12.7062047362, 4.3026527297, 3.1824463053, 2.7764451052};
  if (degrees <= std::size(exact)) return exact[degrees - 1];
  constexpr double z = 1.9599639845;
  constexpr double z3 = z * z * z;
  constexpr double z5 = z3 * z * z;
  constexpr double z7 = z5 * z * z;
  constexpr double z9 = z7 * z * z;
  const auto n = static_cast<double>(degrees);
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n) +
         (79 * z9 + 776 * z7 + 1482 * z5 - 1920 * z3 - 945 * z) / (92160 * n * n * n * n);
}

// Half the width of the 95 % interval of a mean.
double half_interval(const std::vector<double>& values) {
  return student_t(values.size() - 1) * standard_deviation(values) /
         std::sqrt(static_cast<double>(values.size()));
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
  if (values.size() < 2) return 0;
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

std::optional<Interval> repetitions_interval(const std::vector<double>& seconds) {
  if (seconds.size() < 2) return std::nullopt;
  // Times are positive and differ by factors.
  std::vector<double> logarithms;
  for (const double value : seconds) logarithms.push_back(std::log(value));
  const double middle = mean(logarithms);
  const double half = half_interval(logarithms);
  const double time = median(seconds);
  return Interval{std::min(time, std::exp(middle - half)), std::max(time, std::exp(middle + half))};
}

std::optional<double> steadiness(const std::vector<double>& in_order) {
  constexpr size_t fewest = 6;
  constexpr size_t most_batches = 10;
  if (in_order.size() < fewest) return std::nullopt;
  const auto medians = batch_medians(in_order, std::min(in_order.size(), most_batches));
  constexpr double most = 0.9;  // what so few batches can tell from a drift
  const double left = std::clamp(autocorrelation(medians), 0.0, most);
  const double inflation = std::sqrt((1 + left) / (1 - left));
  return half_interval(medians) * inflation / median(in_order);
}

std::vector<double> thinned(const std::vector<double>& values, size_t most) {
  if (values.size() <= most) return values;
  std::vector<double> kept;
  kept.reserve(most);
  for (size_t i = 0; i < most; ++i) kept.push_back(values[i * values.size() / most]);
  return kept;
}

std::optional<Interval> median_interval(std::vector<double> values) {
  constexpr double tail = 0.025;
  const auto count = static_cast<double>(values.size());
  // `below`: the probability that at most k of `count` values lie below the median.
  size_t k = 0;
  double term = std::pow(0.5, count);
  for (double below = term; below <= tail; below += term) {
    ++k;
    term *= (count - static_cast<double>(k) + 1) / static_cast<double>(k);
  }
  if (k == 0) return std::nullopt;
  std::ranges::sort(values);
  return Interval{values[k - 1], values[values.size() - k]};
}

}  // namespace tinyllama

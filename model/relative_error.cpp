#include "model/relative_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace tinyllama {

at::Tensor as_doubles(const at::Tensor& tensor) {
  return tensor.detach().to(c10::kCPU, c10::ScalarType::Double).contiguous();
}

std::span<const double> values_of(const at::Tensor& doubles) {
  return {doubles.const_data_ptr<double>(), static_cast<size_t>(doubles.numel())};
}

std::vector<double> to_values(const at::Tensor& tensor) {
  const at::Tensor doubles = as_doubles(tensor);
  const auto values = values_of(doubles);
  return {values.begin(), values.end()};
}

double largest_magnitude(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

LargestError largest_error(std::span<const double> actual, std::span<const double> expected,
                           double scale) {
  if (actual.size() != expected.size()) {
    throw std::logic_error(
        fmt::format("{} elements cannot be compared with {}", actual.size(), expected.size()));
  }
  LargestError worst;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(actual[i] - expected[i]);
    if (difference == 0) continue;
    const double error = std::isfinite(difference) && scale > 0
                             ? difference / scale
                             : std::numeric_limits<double>::infinity();
    if (error > worst.relative) worst = {error, i};
  }
  return worst;
}

LargestError largest_error(std::span<const double> actual, std::span<const double> expected) {
  return largest_error(actual, expected, largest_magnitude(expected));
}

}  // namespace tinyllama

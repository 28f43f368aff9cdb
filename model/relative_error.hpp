// How far a tensor is from the one expected: the measure of the parity gate and of the proofs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

namespace tinyllama {

struct LargestError {
  double relative = 0;  ///< difference over the scale
  size_t index = 0;     ///< of the element, counted row by row
};

/// A tensor of any type and device as float64 in the host's memory, row by row; the same tensor
/// where it is that already.
at::Tensor as_doubles(const at::Tensor& tensor);
std::span<const double> values_of(const at::Tensor& doubles);
/// The same values outside the allocator of tensors.
std::vector<double> to_values(const at::Tensor& tensor);

/// The element that differs most. Infinite where a difference is not finite, so that NaN never
/// passes, or where the scale is 0 and the difference is not. Throws std::logic_error
/// when the lengths differ.
LargestError largest_error(std::span<const double> actual, std::span<const double> expected,
                           double scale);
/// On the scale of the largest magnitude expected.
LargestError largest_error(std::span<const double> actual, std::span<const double> expected);

double largest_magnitude(std::span<const double> values);

}  // namespace tinyllama

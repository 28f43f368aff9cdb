// How far a tensor is from the one expected: the measure of the parity gate and of the proofs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace tinyllama {

struct LargestError {
  double relative = 0;  ///< difference over the largest magnitude of the expected tensor
  size_t index = 0;     ///< of the element, counted row by row
};

/// Values of a tensor of any type and device, row by row.
std::vector<double> to_values(const at::Tensor& tensor);

/// The element that differs most. Infinite where a difference is not finite, so that NaN never
/// passes, or where all expected values are 0 and the actual ones are not. Throws std::logic_error
/// when the lengths differ.
LargestError largest_error(const std::vector<double>& actual, const std::vector<double>& expected);

}  // namespace tinyllama

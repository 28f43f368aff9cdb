// The ways in which libtorch can multiply two matrices on a device. Internal to the instruments.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/instruments/peaks.hpp"

namespace tinyllama::instruments {

/// How the operands of out[m, n] lie in memory. Each is what one product of a linear layer finds:
/// the forward pass multiplies with a transposed weight [n, k], the input's gradient with the
/// weight as it is, the weight's gradient with a transposed a.
enum class GemmLayout { a_b, a_bt, at_b };
inline constexpr GemmLayout kGemmLayouts[] = {GemmLayout::a_b, GemmLayout::a_bt, GemmLayout::at_b};
std::string_view to_string(GemmLayout layout);

/// out[m, n] = a[m, k] x b[k, n], as views with the strides of a layout.
struct GemmOperands {
  at::Tensor a;
  at::Tensor b;
  at::Tensor out;
};

/// Random operands for any shape out of one buffer of random numbers: filling matrices would take
/// longer than multiplying them, and on a GPU zeros would multiply faster than a model's numbers
/// do.
class GemmOperandPool {
 public:
  GemmOperandPool(c10::Device device, c10::ScalarType type);
  /// Valid until the next call.
  GemmOperands get(const GemmShape& shape, GemmLayout layout);
  /// [count, m, k], [count, k, n] and [count, m, n], each matrix with the strides of the layout.
  GemmOperands get(const BatchedGemmShape& shape, GemmLayout layout);

 private:
  at::Tensor numbers_;  ///< one period of random numbers
  at::Tensor inputs_;   ///< that period, repeated
  at::Tensor output_;
};

/// One way to multiply: a library's entry point. It returns the product, in `out` or in a tensor of
/// its own.
struct GemmPath {
  std::string name;
  std::function<at::Tensor(const GemmOperands&)> multiply;
};

/// The paths that this device offers for this type; those that refuse it, or that compute float32
/// in fewer bits, are left out. Throws std::runtime_error with each path's reason when none is
/// left.
std::vector<GemmPath> usable_gemm_paths(const Device& device, c10::ScalarType type);
/// The same for many products at once, with the operands of BatchedGemmShape.
std::vector<GemmPath> usable_batched_gemm_paths(const Device& device, c10::ScalarType type);

}  // namespace tinyllama::instruments

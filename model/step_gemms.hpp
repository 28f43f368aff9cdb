// The matrix multiplications (GEMMs) of a training step, for measuring how fast a device computes
// them: which shapes there are, and which functions compute one.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <set>
#include <string>

#include "model/cost.hpp"

namespace tinyllama {

/// `batch` multiplications out[m, n] = a[m, k] x b[k, n] at once.
struct GemmShape {
  int64_t batch, m, n, k;
  int64_t flops() const { return 2 * batch * m * n * k; }
  auto operator<=>(const GemmShape&) const = default;
};
/// "1024x256x512" is m x n x k; "32x256x128x64" is 32 of 256x128x64 at once.
std::string to_string(const GemmShape& shape);

/// The forward GEMMs of a step's linear layers, as the variant merges or splits them.
std::set<GemmShape> linear_gemms(const Workload& workload);

/// Every GEMM of a training step: those of linear layers forward, for the input's gradient and for
/// the weight's, also with Q, K and V or gate and up in one, and the LM head's by chunks; and
/// attention's, of B x KV heads at once, the queries of a group stacked.
std::set<GemmShape> step_gemms(const Workload& workload);

/// out[m, n] = a[m, k] x b[k, n], whatever the strides of a and b, or [batch, m, n] of [batch, m,
/// k] and [batch, k, n]. The result is in `out` or in a tensor of its own.
using GemmFunction =
    std::function<at::Tensor(const at::Tensor& a, const at::Tensor& b, at::Tensor& out)>;
/// Ways to multiply, by name.
using GemmPaths = std::map<std::string, GemmFunction>;

/// The path of what at::linear and at::matmul call, which the baseline multiplies by.
inline constexpr const char* kDefaultPath = "default BLAS";

/// The functions of libtorch and of our own that multiply operands of this type, by name; not each
/// is fast or implemented for the type. `batched`: those for operands with three dimensions.
GemmPaths gemm_paths(c10::ScalarType type, c10::DeviceType device, bool batched = false);

}  // namespace tinyllama

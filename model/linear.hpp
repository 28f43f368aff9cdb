// Linear layers that read the same input: one matrix multiplication for each, or one for all.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/gemm.hpp"
#include "model/parameters.hpp"

namespace tinyllama {

/// The type in which `x` is multiplied: what autocast says where it is on, else x's own.
c10::ScalarType gemm_type(const at::Tensor& x);

/// One weight, or several for the same input. Merged ones lie side by side in one buffer, so that a
/// single matrix multiplication serves them; yet each stays a parameter of its own with its own
/// gradient: names, optimizer and files do not see that they are neighbours.
class Linear {
 public:
  /// A single weight, [out, in], and with `has_bias` a bias [out].
  Linear(int64_t in, int64_t out, const Variant& variant, TensorInitializer& initializer,
         bool has_bias = false);
  /// `outs`: rows of each part; drawn in this order, then the biases.
  Linear(int64_t in, at::IntArrayRef outs, bool merged, const Variant& variant,
         TensorInitializer& initializer, bool has_bias = false);
  /// A single weight that is another layer's parameter as well, as it lies in memory.
  Linear(const at::Tensor& weight, const Variant& variant);

  /// x [.., in] -> [.., sum of outs]; for a single weight or merged ones.
  at::Tensor forward(const at::Tensor& x) const;
  /// x [.., in] -> [.., out] of each part; of merged ones views of one tensor.
  std::vector<at::Tensor> forward_parts(const at::Tensor& x) const;

  /// Weight of a part, [out, in].
  const at::Tensor& weight(size_t part = 0) const { return parts_.at(part); }
  /// Weight and, where there is one, bias of a part, named behind `prefix` ("q_proj.").
  NamedTensors parameters(const std::string& prefix, size_t part = 0) const;

 private:
  /// What one matrix multiplication multiplies by: the rows of one part or more.
  struct Buffer {
    at::Tensor rows;                 // [sum of the parts' outs, in]
    std::vector<at::Tensor> parts;   // views of it
    std::vector<at::Tensor> biases;  // [out] of each part; or none
  };
  at::Tensor multiply(const at::Tensor& x, const Buffer& buffer) const;

  std::vector<Buffer> buffers_;
  std::vector<at::Tensor> parts_;
  std::vector<at::Tensor> biases_;
  std::vector<int64_t> outs_;
  Gemm gemm_;
  std::optional<SlotOperator> operator_;
};

}  // namespace tinyllama

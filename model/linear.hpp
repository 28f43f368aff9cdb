// Linear layers without bias that read the same input: one product for each, or one for all.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/parameters.hpp"
#include "model/products.hpp"

namespace tinyllama {

/// The type in which products of `x` run: what autocast says where it is on, else x's own.
c10::ScalarType product_type(const at::Tensor& x);

/// One weight, or several whose rows lie side by side in one buffer, so that a single product
/// serves them. Each part stays a parameter of its own with its own gradient: names, optimizer and
/// files do not see that they are neighbours.
class Linear {
 public:
  /// `outs`: rows of each part; drawn in this order. More than one: merged.
  Linear(int64_t in, at::IntArrayRef outs, const Variant& variant, TensorInitializer& initializer);

  /// x [.., in] -> [.., sum of outs].
  at::Tensor forward(const at::Tensor& x) const;
  /// The same, split into its parts: views of one tensor.
  std::vector<at::Tensor> forward_parts(const at::Tensor& x) const;

  /// Weight of a part, [out, in].
  const at::Tensor& weight(size_t part = 0) const { return parts_.at(part); }

 private:
  at::Tensor merged_;  // [sum of outs, in]; its rows are the parts
  std::vector<at::Tensor> parts_;
  std::vector<int64_t> outs_;
  Products products_;
};

}  // namespace tinyllama

// Root mean square normalisation with a learned scale.
#pragma once

#include <optional>

#include "model/cost.hpp"
#include "model/parameters.hpp"
#include "model/variant.hpp"

namespace tinyllama {

class RmsNorm {
 public:
  /// Of rows of `width` elements.
  RmsNorm(int64_t width, double eps, const Variant& variant, TensorInitializer& initializer);

  /// hidden_states [.., width] -> weight * x / sqrt(mean(x^2) + eps), same shape and type. Types
  /// narrower than float32 are normalised in float32 and rounded before the scale, as LlamaRMSNorm
  /// does.
  at::Tensor forward(const at::Tensor& hidden_states) const;
  /// The sum of the residual stream and a branch (possibly of a narrower type), and that sum
  /// normalised.
  struct Sum {
    at::Tensor stream;
    at::Tensor normalized;
  };
  Sum add_and_normalize(const at::Tensor& stream, const at::Tensor& branch) const;
  NamedTensors parameters(const std::string& prefix) const;

 private:
  at::Tensor weight_;  // [width]
  double eps_;
  bool fused_;
  std::optional<SlotOperator> operator_;           // of the norm
  std::optional<SlotOperator> residual_operator_;  // of the norm with the sum before it
};

/// stream, branch [B, S, D] -> their sum: a layer's output added to the residual stream.
at::Tensor add_residual(const at::Tensor& stream, const at::Tensor& branch);

/// The cost of one norm of the hidden states.
Cost rms_norm_cost(const Workload& workload, Pass pass);
/// The cost of norming each head of q and of k.
Cost qk_norm_cost(const Workload& workload, Pass pass);

}  // namespace tinyllama

// Named parameters and how they get their first values.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/dtype.hpp"

namespace tinyllama {

/// Tensors with the names that LlamaForCausalLM gives them
/// ("model.layers.0.self_attn.q_proj.weight").
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
void append(NamedTensors& to, const NamedTensors& from);

/// Standard deviation of initial weights, as in LLaMA's initializer_range.
inline constexpr double kInitialStd = 0.02;

/// Draws parameters and inputs from a seed, the same values whatever dtype and device they end up
/// in: they are drawn on the CPU in float64 and rounded so that bfloat16 and float16 hold them
/// exactly. One float64 reference thus serves every dtype.
class TensorInitializer {
 public:
  TensorInitializer(uint64_t seed, Dtype dtype, c10::Device device);

  /// A parameter with values from N(0, std^2), that requires gradients.
  at::Tensor normal_parameter(at::IntArrayRef shape, double std = kInitialStd);
  /// A parameter of ones, that requires gradients.
  at::Tensor ones_parameter(at::IntArrayRef shape);
  /// Values from N(0, std^2) in the type of activations, without gradients.
  at::Tensor normal(at::IntArrayRef shape, double std = 1.0);
  /// Integers from [0, end), int64.
  at::Tensor tokens(at::IntArrayRef shape, int64_t end);

  Dtype dtype() const { return dtype_; }
  c10::Device device() const { return device_; }

 private:
  at::Generator generator_;
  Dtype dtype_;
  c10::Device device_;
};

}  // namespace tinyllama

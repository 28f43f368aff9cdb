// Activation checkpointing: a layer's activations are thrown away and computed again in the
// backward (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace tinyllama {

/// layer(x) without keeping what its backward needs but x; the backward calls the layer once more.
/// Gradients of the layer's parameters are added to them, as its own backward would. Where no
/// gradients are recorded, just layer(x). The layer must compute the same both times.
at::Tensor checkpointed(std::function<at::Tensor(const at::Tensor&)> layer, const at::Tensor& x);

}  // namespace tinyllama

// Which variants a device can run, and the best of them.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "model/dtype.hpp"
#include "model/variant.hpp"

namespace tinyllama {

/// What the choice of an implementation depends on.
struct DeviceTraits {
  bool has_fast_products(Dtype dtype) const;

  bool is_gpu = false;
  /// Products of bfloat16, of float16, have units of their own; without them libraries compute them
  /// far more slowly than float32's (a step of `tiny`: README, "Measured here").
  bool fast_bf16_products = false;
  bool fast_f16_products = false;
  /// oneDNN's float32 products are faster than those of the default BLAS: on AMD processors with
  /// AVX-512, of which MKL leaves half unused (measured there: 185 against 400 GFLOP/s on two
  /// cores).
  bool fast_onednn_f32 = false;
  bool has_onednn = false;
  /// libtorch can capture work of this device and replay it.
  bool has_graphs = false;
  /// Fused kernels of our own were built for this device.
  bool has_own_kernels = true;

  auto operator<=>(const DeviceTraits&) const = default;
};

/// Of the device that this process computes on.
DeviceTraits device_traits(c10::DeviceType device);

inline DeviceTraits cpu_traits() {
  return device_traits(c10::DeviceType::CPU);
}

/// The set of switches that is fastest on this device in this dtype, named "optimized". The rules,
/// each with the measurement behind it, are in optimized.cpp.
Variant optimized_variant(Dtype dtype, const DeviceTraits& traits);

/// `variant` itself, or what "optimized" stands for here.
Variant resolved(const Variant& variant, Dtype dtype, const DeviceTraits& traits);

/// These traits with every speed of products that a processor may have, Intel's and AMD's, with and
/// without units for bfloat16 and float16: what `optimized` is chosen by. A GPU stands alone.
std::vector<DeviceTraits> processors_like(const DeviceTraits& traits);

/// The baseline, every switch alone, the set "fused", what "optimized" is on any other processor,
/// and, last, "optimized": what a proof has to hold for. Those that the device cannot run in this
/// dtype are left out.
std::vector<Variant> runnable_variants(Dtype dtype, const DeviceTraits& traits);

}  // namespace tinyllama

// Variant: the set of switches that choose an implementation of each part of the model; the empty
// set is the baseline. What a switch is stands in its descriptor, in variant.cpp, and nowhere else.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/dtype.hpp"

namespace tinyllama {

/// One optimisation each; the order is that of a variant's name. Adding one takes a value here, its
/// descriptor in variant.cpp, and the layer or kernel that asks for it.
enum class Switch : uint8_t {
  qkv,
  gate_up,
  fused_swiglu,
  sdpa,
  fused_attention,
  fused_norm,
  fused_rotary,
  fused_loss,
  foreach_adamw,
  fused_adamw,
  checkpoint,
  onednn,
  wide_products,
  graph,
  layout,
  count  ///< no switch: how many there are
};

/// What a switch can be part of. A part contains others (full_step the model, the model blocks,
/// ...), and with them their switches.
enum class ModelPart : uint8_t {
  embedding,
  rms_norm,
  rotary,
  attention,
  ffn,
  block,
  loss,
  model,
  optimizer,
  full_step,
  count  ///< no part: how many there are
};

/// A set of parts.
class ModelParts {
 public:
  constexpr ModelParts(std::initializer_list<ModelPart> parts) {
    for (const ModelPart part : parts) bits_ |= uint32_t{1} << static_cast<uint32_t>(part);
  }
  constexpr bool has(ModelPart part) const {
    return (bits_ >> static_cast<uint32_t>(part) & 1) != 0;
  }

 private:
  uint32_t bits_ = 0;
};

class Variant;

/// What the choice of an implementation depends on.
struct DeviceTraits {
  bool has_fast_gemm(Dtype dtype) const;

  bool is_gpu = false;
  /// Matrix multiplications of bfloat16, of float16, have units of their own; without them
  /// libraries compute them far more slowly than float32's (a step of `tiny`: README, "Measured
  /// here").
  bool fast_bf16_gemm = false;
  bool fast_f16_gemm = false;
  /// oneDNN's float32 GEMM is faster than those of the default BLAS: on AMD processors with
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

struct SwitchDescriptor {
  struct Exclusion {
    Switch other;
    std::string_view reason;
  };

  Switch option;
  std::string_view name;
  /// What it changes, in a few words.
  std::string_view description;
  /// The innermost parts whose work it changes; switches_of() adds those around them.
  ModelParts parts;
  /// Switches that a variant cannot have beside it, and why; said by the first of the two.
  std::span<const Exclusion> excludes = {};
  /// Empty, or why the dtype or the device cannot run it in this variant, without its name; null
  /// where all can.
  std::string (*refusal)(const Variant&, Dtype, const DeviceTraits&) = nullptr;
};

const SwitchDescriptor& descriptor(Switch option);
inline std::string_view to_string(Switch option) {
  return descriptor(option).name;
}
/// Every switch, in order.
std::span<const Switch> all_switches();
/// Those that change something in the part, in order.
std::vector<Switch> switches_of(ModelPart part);

class Variant {
 public:
  /// The baseline.
  Variant() = default;
  explicit Variant(std::span<const Switch> switches);
  explicit Variant(std::initializer_list<Switch> switches)
      : Variant(std::span<const Switch>(switches.begin(), switches.size())) {}

  /// "baseline", switches joined by "+", the set "fused" among them, or "optimized" alone. Throws
  /// std::invalid_argument naming the text and the known names, or why a combination is impossible.
  static Variant parse(std::string_view text);
  /// The workshop's version 2: qkv+gate_up+fused_swiglu+sdpa+fused_adamw.
  static Variant fused();
  /// The set to be chosen for a workload; has no switch before resolved().
  static Variant unresolved_optimized();

  bool has(Switch option) const { return (bits_ & bit(option)) != 0; }
  bool has_any(std::span<const Switch> options) const;
  bool is_baseline() const { return bits_ == 0 && !optimized_; }
  /// Named "optimized", whatever its switches are.
  bool is_optimized() const { return optimized_; }
  Variant with(Switch option) const;
  Variant without(Switch option) const;
  /// The same switches under the name "optimized".
  Variant named_optimized() const;
  std::vector<Switch> switches() const;

  /// The spelling that parse() reads: "baseline", "fused", "optimized" or the switches.
  std::string name() const;
  /// The switches joined by "+", also where name() is that of a set.
  std::string switch_names() const;
  /// Empty, or why the switches exclude each other.
  std::string contradiction() const;

  auto operator<=>(const Variant&) const = default;

 private:
  static constexpr uint32_t bit(Switch option) {
    return uint32_t{1} << static_cast<uint32_t>(option);
  }

  uint32_t bits_ = 0;
  bool optimized_ = false;
};

/// Of the device that this process computes on.
DeviceTraits device_traits(c10::DeviceType device);

inline DeviceTraits cpu_traits() {
  return device_traits(c10::DeviceType::CPU);
}

/// Empty, or why the variant cannot run in this dtype on this device.
std::string refuse_variant(const Variant& variant, Dtype dtype, const DeviceTraits& traits);

/// The set of switches that is fastest on this device in this dtype, named "optimized". The rules,
/// each with the measurement behind it, are in variant.cpp.
Variant optimized_variant(Dtype dtype, const DeviceTraits& traits);

/// `variant` itself, or what "optimized" stands for here.
Variant resolved(const Variant& variant, Dtype dtype, const DeviceTraits& traits);

/// These traits with every speed of matrix multiplications that a processor may have, Intel's and
/// AMD's, with and without units for bfloat16 and float16: what `optimized` is chosen by. A GPU
/// stands alone.
std::vector<DeviceTraits> processors_like(const DeviceTraits& traits);

/// The baseline, every switch alone, the set "fused", what "optimized" is on any other processor,
/// and, last, "optimized": what a proof has to hold for. Those that the device cannot run in this
/// dtype are left out.
std::vector<Variant> runnable_variants(Dtype dtype, const DeviceTraits& traits);

}  // namespace tinyllama

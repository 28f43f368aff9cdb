// Variant: the set of switches that choose an implementation of each part, and the operators of a
// user's that fill slots of the model. The empty set is the baseline. What there is to know of a
// switch is its descriptor in variant.cpp, and nowhere else.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/dtype.hpp"
#include "model/slots.hpp"

namespace tinyllama {

/// One optimisation each; the order is that of a variant's name, and of the descriptors.
enum class Switch : uint8_t {
  qkv,              ///< one projection for Q, K and V
  gate_up,          ///< one projection for gate and up
  fused_swiglu,     ///< silu(gate) * up in one pass, forward and backward
  sdpa,             ///< the library's scaled_dot_product_attention
  fused_attention,  ///< our own causal attention in tiles, without a score matrix
  fused_norm,       ///< RMSNorm in one pass, with the residual addition before it
  fused_rotary,     ///< rotation in one pass
  fused_loss,       ///< LM head and cross-entropy by chunks of tokens, no logits kept
  foreach_adamw,    ///< AdamW by operators over lists of tensors
  fused_adamw,      ///< AdamW in one pass over all parameters
  library_adamw,    ///< the same by libtorch, torch.optim.AdamW(fused=True)
  checkpoint,       ///< a block's activations are computed again in the backward
  tiled_gemm,       ///< CPU: GEMMs of linear layers in register tiles of our own
  wide_gemm,        ///< CPU: bfloat16 and float16 GEMMs computed in float32, rounded once
  graph,            ///< GPU: the step is captured once and replayed
  layout,           ///< weights stored [in, out], the GEMM's other operand order
};

/// Parts of a model that a switch can change.
enum class Part : uint8_t {
  linear,
  norm,
  residual_norm,
  rotary,
  attention,
  ffn,
  block,
  loss,
  update,
  step
};

/// A set of parts; `attention | ffn` is what holds both.
class Parts {
 public:
  constexpr Parts() = default;
  constexpr Parts(Part part) : bits_(uint32_t{1} << static_cast<uint32_t>(part)) {}
  constexpr bool overlap(Parts others) const { return (bits_ & others.bits_) != 0; }
  friend constexpr Parts operator|(Parts a, Parts b) {
    a.bits_ |= b.bits_;
    return a;
  }

 private:
  uint32_t bits_ = 0;
};
constexpr Parts operator|(Part a, Part b) {
  return Parts(a) | Parts(b);
}

/// What the choice of an implementation depends on.
struct DeviceTraits {
  bool has_fast_gemm(Dtype dtype) const;
  /// Whether sdpa is more than the baseline's own attention.
  bool has_library_attention(Dtype dtype) const;

  bool is_gpu = false;
  /// The processor has units for GEMMs in bfloat16, in float16. Without them, libraries compute
  /// these far more slowly than in float32 (a step of `tiny`: results/MEASURED.md).
  bool fast_bf16_gemm = false;
  bool fast_f16_gemm = false;
  /// Our own GEMMs are faster than the library's: on AMD processors with AVX-512, of which MKL
  /// leaves half unused (float32 on two cores: 185 GFLOP/s where oneDNN has 400) and oneDNN a tenth
  /// (results/MEASURED.md).
  bool fast_tiled_gemm = false;
  /// Types in which the library would multiply out all scores (library_attention_is_math).
  std::vector<c10::ScalarType> attention_by_math;
  /// libtorch can capture work of this device and replay it.
  bool has_graphs = false;
  /// Why no fused kernels of our own run on this device; empty where they do.
  std::string no_own_kernels;

  auto operator<=>(const DeviceTraits&) const = default;
};

std::string_view to_string(Switch option);
/// What it does, in a few words, for --help and tables.
std::string_view describe(Switch option);
/// Every switch, in order.
std::span<const Switch> all_switches();

class Variant {
 public:
  /// The baseline.
  Variant() = default;
  explicit Variant(std::span<const Switch> switches);
  explicit Variant(std::initializer_list<Switch> switches)
      : Variant(std::span<const Switch>(switches.begin(), switches.size())) {}

  /// "baseline", or switches joined by "+", the set "fused" among them, or "optimized" in their
  /// place; operators ("my::rms_norm", see slots.hpp) may stand beside them. Throws
  /// std::invalid_argument naming the text and the known names, or why a combination is impossible.
  static Variant parse(std::string_view text);
  /// The workshop's version 2: qkv+gate_up+fused_swiglu+sdpa+fused_adamw.
  static Variant fused();
  /// The set to be chosen for a workload; has no switch before resolved().
  static Variant unresolved_optimized();

  bool has(Switch option) const { return (bits_ & bit(option)) != 0; }
  /// Whether it changes what a component of these parts computes, compared with the baseline.
  bool changes(Parts parts) const;
  /// Whether both compute the same in a component of these parts.
  bool same_in(Parts parts, const Variant& other) const;
  /// Whether its operators change what such a component computes.
  bool operators_change(Parts parts) const;
  bool is_baseline() const { return bits_ == 0 && !optimized_ && operators_.empty(); }
  /// Named "optimized", whatever its switches are.
  bool is_optimized() const { return optimized_; }
  Variant with(Switch option) const;
  Variant without(Switch option) const;
  /// With the operator in its slot, and without the switches that would fill it.
  Variant with(const SlotOperator& op) const;
  Variant without_operators() const;
  /// The operator in this slot; null where the model's own is.
  const SlotOperator* filling(Slot slot) const;
  /// Whether all of them can be run on the meta device, where memory is predicted.
  bool runs_on_meta() const;
  /// In the order of slots.
  const std::vector<SlotOperator>& operators() const { return operators_; }
  /// The same switches under the name "optimized".
  Variant named_optimized() const;
  std::vector<Switch> switches() const;

  /// The spelling that parse() reads: "baseline", "fused", "optimized" or the switches, and the
  /// operators.
  std::string name() const;
  /// Switches and operators joined by "+", also where name() is that of a set.
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
  std::vector<SlotOperator> operators_;
};

/// Empty, or why the variant cannot run in this dtype on this device.
std::string refuse_variant(const Variant& variant, Dtype dtype, const DeviceTraits& traits);

/// Whether libtorch can capture the work of such a device (from 2.11 on, CUDA and ROCm).
bool can_capture(c10::DeviceType device);

/// The traits of the device that this process computes on.
DeviceTraits device_traits(c10::Device device);

inline DeviceTraits cpu_traits() {
  return device_traits(c10::Device(c10::DeviceType::CPU));
}

/// The set of switches that is fastest on this device in this dtype, named "optimized". The rules,
/// each with the measurement behind it, are in variant.cpp.
Variant optimized_variant(Dtype dtype, const DeviceTraits& traits);

/// `variant` itself, or what "optimized" stands for here.
Variant resolved(const Variant& variant, Dtype dtype, const DeviceTraits& traits);

/// For a processor, the traits of every kind of processor that `optimized` is chosen by: Intel's
/// and AMD's, with and without units for bfloat16 and float16. For a GPU these traits alone.
std::vector<DeviceTraits> processors_like(const DeviceTraits& traits);

/// The baseline, every switch alone, the set "fused", what "optimized" is on any other processor,
/// and, last, "optimized": what a proof has to hold for. Those that the device cannot run in this
/// dtype are left out.
std::vector<Variant> runnable_variants(Dtype dtype, const DeviceTraits& traits);

}  // namespace tinyllama

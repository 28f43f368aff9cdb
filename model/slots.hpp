// Slots: operations of the model that an operator of libtorch's dispatcher can fill, such as one
// that a plug-in registered with TORCH_LIBRARY. docs/plugins.md is for those who write one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllama {

/// Named as the operators that fill them; the order is that of the table in slots.cpp.
enum class Slot : uint8_t {
  rms_norm,
  rms_norm_residual,
  rotary,
  causal_attention,
  swiglu,
  linear,
  linear_cross_entropy,
  adamw_step_,
};

std::string_view to_string(Slot slot);
/// "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor".
std::string_view schema_of(Slot slot);
std::span<const Slot> all_slots();

/// An operator that fills a slot, with the one that computes its gradients where its library brings
/// one.
class SlotOperator {
 public:
  /// `name`: "my::rms_norm", or with an overload "my::rms_norm.fast". Its gradients come from its
  /// own Autograd kernel, or from "my::rms_norm_backward" (of the same overload), whose arguments
  /// are found by their names: `gradient` (of two outputs sum_gradient and normalized_gradient),
  /// any of the slot's inputs, and its outputs (`output`; `sum` and `normalized`). Only these are
  /// kept for the backward. It returns a gradient for each input that has one. Throws
  /// std::invalid_argument for an operator that is not loaded, of no slot, of another schema or
  /// without gradients.
  static SlotOperator find(std::string_view name);
  /// Whether an operator of that name could fill a slot: its part behind "::" is a slot's name.
  static bool is_name(std::string_view name);

  Slot slot() const;
  const std::string& name() const;
  /// Empty, or why it cannot run on such a device.
  std::string refuse_device(c10::DeviceType device) const;
  /// Whether it runs on the meta device, where memory is predicted.
  bool has_meta_kernel() const;

  /// How often it was called, it or a copy of it.
  int64_t calls() const;
  /// Calls it with the arguments of the slot's schema. Autograd records the call.
  std::vector<at::Tensor> operator()(std::vector<c10::IValue> arguments) const;

  friend std::strong_ordering operator<=>(const SlotOperator& a, const SlotOperator& b) {
    return a.name() <=> b.name();
  }
  friend bool operator==(const SlotOperator& a, const SlotOperator& b) {
    return a.name() == b.name();
  }

 private:
  struct Entry;
  explicit SlotOperator(std::shared_ptr<const Entry> entry) : entry_(std::move(entry)) {}
  friend class SlotFunction;

  std::shared_ptr<const Entry> entry_;
};

/// What a layer keeps of Variant::filling().
inline std::optional<SlotOperator> copy_of(const SlotOperator* op) {
  return op == nullptr ? std::nullopt : std::optional(*op);
}

}  // namespace tinyllama

// The dtype axis: which type parameters are stored in and which type matrices are multiplied in.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllama {

/// bf16, f16: parameters, gradients and AdamW moments in that type. amp_*: float32 parameters and
/// moments, matrix multiplications under autocast. f64 serves as the reference that other dtypes
/// are compared with; no benchmark case has it.
enum class Dtype { f64, f32, bf16, f16, amp_bf16, amp_f16 };

std::string_view to_string(Dtype dtype);
/// Throws std::invalid_argument naming the text and the allowed names.
Dtype parse_dtype(std::string_view text);
/// The dtypes that a benchmark case can have, in the order they are listed.
std::vector<Dtype> benchmark_dtypes();

/// Type of parameters, gradients and moments.
c10::ScalarType storage_type(Dtype dtype);
/// The type itself, or float32 for narrower ones: what sums and statistics are computed in.
inline c10::ScalarType at_least_float(c10::ScalarType type) {
  return c10::promoteTypes(type, c10::ScalarType::Float);
}
/// Type in which matrices are multiplied.
c10::ScalarType compute_type(Dtype dtype);
/// The name of that type: "f32" for f32, "bf16" for bf16 and amp_bf16.
std::string gemm_type_name(Dtype dtype);
bool uses_autocast(Dtype dtype);
int64_t storage_bytes(Dtype dtype);
int64_t compute_bytes(Dtype dtype);

/// Operators of its scope take operands as they are, also under autocast.
class WithoutAutocast {
 public:
  WithoutAutocast() : excluded_(c10::autocast_dispatch_keyset) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard excluded_;
};

/// Type that autocast asks for on this device, here and now; nothing where it is off.
std::optional<c10::ScalarType> autocast_type(c10::DeviceType device);

/// Runs its scope under autocast where the dtype asks for it, and without it for the others.
/// Weights cast inside the scope are kept until its end, as torch.autocast does.
class AutocastScope {
 public:
  AutocastScope(Dtype dtype, c10::DeviceType device);
  /// With what autocast_type() gave elsewhere.
  AutocastScope(std::optional<c10::ScalarType> type, c10::DeviceType device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  void set(std::optional<c10::ScalarType> type) const;

  c10::DeviceType device_;
  std::optional<c10::ScalarType> previous_;
  bool active_;
};

}  // namespace tinyllama

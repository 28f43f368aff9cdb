#include "model/dtype.hpp"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "model/meta_device.hpp"

namespace tinyllama {
namespace {

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  c10::ScalarType storage;
  c10::ScalarType compute;
};

constexpr DtypeRow kDtypes[] = {
    {Dtype::f64, "f64", c10::ScalarType::Double, c10::ScalarType::Double},
    {Dtype::f32, "f32", c10::ScalarType::Float, c10::ScalarType::Float},
    {Dtype::bf16, "bf16", c10::ScalarType::BFloat16, c10::ScalarType::BFloat16},
    {Dtype::f16, "f16", c10::ScalarType::Half, c10::ScalarType::Half},
    {Dtype::amp_bf16, "amp_bf16", c10::ScalarType::Float, c10::ScalarType::BFloat16},
    {Dtype::amp_f16, "amp_f16", c10::ScalarType::Float, c10::ScalarType::Half},
};

const DtypeRow& row(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)];
}

}  // namespace

std::string_view to_string(Dtype dtype) {
  return row(dtype).name;
}

Dtype parse_dtype(std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto& candidate : kDtypes) {
    if (candidate.name == text) return candidate.dtype;
    names.push_back(candidate.name);
  }
  throw std::invalid_argument(
      fmt::format("dtype '{}': must be one of {}", text, fmt::join(names, ", ")));
}

std::vector<Dtype> benchmark_dtypes() {
  return {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::amp_bf16, Dtype::amp_f16};
}

c10::ScalarType storage_type(Dtype dtype) {
  return row(dtype).storage;
}
c10::ScalarType compute_type(Dtype dtype) {
  return row(dtype).compute;
}
std::string gemm_type_name(Dtype dtype) {
  // That of the dtype which is nothing but this type.
  const auto* const found = std::ranges::find(kDtypes, compute_type(dtype), &DtypeRow::storage);
  return std::string(found->name);
}

bool uses_autocast(Dtype dtype) {
  return row(dtype).storage != row(dtype).compute;
}

int64_t storage_bytes(Dtype dtype) {
  return static_cast<int64_t>(c10::elementSize(storage_type(dtype)));
}

int64_t compute_bytes(Dtype dtype) {
  return static_cast<int64_t>(c10::elementSize(compute_type(dtype)));
}

std::optional<c10::ScalarType> autocast_type(c10::DeviceType device) {
  const c10::DeviceType known = autocast_device(device);
  if (!at::autocast::is_autocast_enabled(known)) return std::nullopt;
  return at::autocast::get_autocast_dtype(known);
}

AutocastScope::AutocastScope(Dtype dtype, c10::DeviceType device)
    : AutocastScope(uses_autocast(dtype) ? std::optional(compute_type(dtype)) : std::nullopt,
                    device) {}

AutocastScope::AutocastScope(std::optional<c10::ScalarType> type, c10::DeviceType device)
    : device_(device), previous_(autocast_type(device)), active_(type != previous_) {
  if (!active_) return;
  set(type);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
    clear_meta_autocast_cache();
  }
  set(previous_);
}

void AutocastScope::set(std::optional<c10::ScalarType> type) const {
  const c10::DeviceType known = autocast_device(device_);
  at::autocast::set_autocast_enabled(known, type.has_value());
  if (type) at::autocast::set_autocast_dtype(known, *type);
  // Tensors on a CPU or GPU bring autocast's key with them, those on meta do not.
  if (known != device_) {
    c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::AutocastPrivateUse1,
                                             type.has_value());
  }
}

}  // namespace tinyllama

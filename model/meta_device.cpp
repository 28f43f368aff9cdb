#include "model/meta_device.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/add_meta_dispatch.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/div_meta_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mean_meta_dispatch.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_meta_dispatch.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sub_meta_dispatch.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <unordered_map>
#include <vector>

#include "model/dtype.hpp"

namespace tinyllama {
namespace {

using at::Tensor;

// --- autocast ---

// The casts of leaves, which autocast makes once a scope (cached_cast, ATen/autocast_mode.cpp). The
// tensor itself is kept beside its cast, so that no other one gets its address.
using CastCache = std::unordered_map<c10::TensorImpl*, std::pair<Tensor, Tensor>>;

CastCache& cast_cache() {
  static thread_local CastCache cache;
  return cache;
}

Tensor cast(const Tensor& x) {
  const auto type = at::autocast::get_autocast_dtype(autocast_device(c10::DeviceType::Meta));
  const bool eligible = x.is_meta() && x.is_floating_point() &&
                        x.scalar_type() != c10::ScalarType::Double && x.scalar_type() != type;
  if (!eligible) return x;
  const bool kept = x.scalar_type() == c10::ScalarType::Float && x.requires_grad() && x.is_leaf() &&
                    !x.is_view() && at::autocast::is_autocast_cache_enabled();
  if (!kept) return x.to(type);
  auto [found, is_new] = cast_cache().try_emplace(x.unsafeGetTensorImpl(), x, Tensor());
  if (is_new) found->second.second = x.to(type);
  return found->second.second;
}

template <class Operator>
Tensor multiply_cast(const Tensor& a, const Tensor& b) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return Operator::call(cast(a), cast(b));
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  // A build for such a device has one already.
  constexpr auto key = c10::DispatchKey::AutocastPrivateUse1;
  if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key))
    m.fallback(torch::CppFunction::makeFallthrough());
}

// The operators of the model that autocast runs in its type; in the others the layers choose the
// type by themselves, wherever autocast would (softmax, norms, loss).
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  m.impl("linear", [](const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return at::_ops::linear::call(cast(x), cast(weight),
                                  bias ? std::optional(cast(*bias)) : std::nullopt);
  });
  m.impl("mm", multiply_cast<at::_ops::mm>);
  m.impl("bmm", multiply_cast<at::_ops::bmm>);
  m.impl("matmul", multiply_cast<at::_ops::matmul>);
}

// --- operators that libtorch implements for meta in Python only ---

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim < 0 ? dim + x.dim() : dim)] = index.numel();
  return at::empty(sizes, x.options());
}

Tensor embedding_dense_backward(const Tensor& gradient, const Tensor& /*indices*/,
                                c10::SymInt weights, c10::SymInt /*padding*/, bool /*scale*/) {
  return at::empty({weights.expect_int(), gradient.size(-1)}, gradient.options());
}

void unscale(at::TensorList /*gradients*/, Tensor& /*found*/, const Tensor& /*inverse_scale*/) {}

// Results alone: what the kernel of a processor takes for its tiles is its own affair.
std::tuple<Tensor, Tensor> flash_attention(const Tensor& q, const Tensor& /*k*/,
                                           const Tensor& /*v*/, double /*dropout*/, bool /*causal*/,
                                           const std::optional<Tensor>& /*mask*/,
                                           std::optional<double> /*scale*/) {
  const Tensor log_sum_exp = at::empty({q.size(0), q.size(2), q.size(1)},
                                       q.options().dtype(at_least_float(q.scalar_type())));
  return {at::empty_like(q), log_sum_exp.transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor& /*gradient*/, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& /*out*/, const Tensor& /*log_sum_exp*/, double /*dropout*/, bool /*causal*/,
    const std::optional<Tensor>& /*mask*/, std::optional<double> /*scale*/) {
  const auto heads_behind_positions = [](const Tensor& x) {
    return at::empty(x.transpose(1, 2).sizes(), x.options()).transpose(1, 2);
  };
  return {heads_behind_positions(q), heads_behind_positions(k), heads_behind_positions(v)};
}

// Of an operator that works in place, allocates nothing and returns nothing.
void update_nothing(const c10::OperatorHandle& update, c10::Stack* stack) {
  torch::jit::drop(stack, update.schema().arguments().size());
}

// --- operators that allocate more on a CPU than on meta ---

bool for_cpu(const Tensor& x) {
  return x.is_meta() && meta_stands_for == c10::DeviceType::CPU;
}

// Operands of another type than the result, cast: also numbers, which operators wrap in tensors of
// float64. TensorIteratorBase::compute_types does so for tensors on a CPU only.
std::vector<Tensor> promoted_operands(const Tensor& a, const Tensor& b) {
  std::vector<Tensor> promoted;
  if (!for_cpu(a) && !for_cpu(b)) return promoted;
  const c10::ScalarType type = at::result_type(a, b);
  for (const Tensor* operand : {&a, &b}) {
    if (operand->scalar_type() != type)
      promoted.push_back(at::empty(operand->sizes(), operand->options().dtype(type)));
  }
  return promoted;
}

// Autograd adds a gradient in place to one that nobody else holds, but not on meta (accumulate and
// can_accumulate_inplace, torch/csrc/autograd/input_buffer.cpp).
bool is_sum_of_gradients(const Tensor& a) {
  return a.is_meta() && torch::autograd::get_current_graph_task_id() != -1 &&
         !at::GradMode::is_enabled() && a.is_non_overlapping_and_dense() && a.use_count() == 1 &&
         a.has_storage() && a.storage().use_count() == 1;
}

Tensor add(const Tensor& a, const Tensor& b, const at::Scalar& alpha) {
  if (is_sum_of_gradients(a)) return const_cast<Tensor&>(a).add_(b, alpha);
  const auto promoted = promoted_operands(a, b);
  return at::meta::add(a, b, alpha);
}

// A CPU's is a sum, divided in place by a number.
Tensor mean(const Tensor& x, at::OptionalIntArrayRef dims, bool keep,
            std::optional<c10::ScalarType> type) {
  Tensor result = at::meta::mean(x, dims, keep, type);
  if (for_cpu(x)) result.div_(x.numel() / result.numel());
  return result;
}

// libtorch's own kernel for meta, beside its promoted operands.
template <class Result, class First, class... Rest>
void promote(torch::Library& m, const char* name, Result (*kernel)(First, const Tensor&, Rest...)) {
  m.impl(name, [kernel](First a, const Tensor& b, Rest... rest) -> Result {
    const auto promoted = promoted_operands(a, b);
    return kernel(a, b, rest...);
  });
}

// Also in place of kernels that libtorch has: on meta it allows that, as its Python does it too.
TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("index_select", index_select);
  m.impl("embedding_dense_backward", embedding_dense_backward);
  m.impl("_scaled_dot_product_flash_attention_for_cpu", flash_attention);
  m.impl("_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward);
  m.impl("_amp_foreach_non_finite_check_and_unscale_", unscale);
  m.impl("_fused_adamw_", torch::CppFunction::makeFromBoxedFunction<&update_nothing>());
  m.impl("mean.dim", mean);
  m.impl("add.Tensor", add);
  promote(m, "add_.Tensor", at::meta::add_);
  promote(m, "add.out", at::meta::add_outf);
  promote(m, "sub.Tensor", at::meta::sub);
  promote(m, "sub_.Tensor", at::meta::sub_);
  promote(m, "sub.out", at::meta::sub_outf);
  promote(m, "mul.Tensor", at::meta::mul);
  promote(m, "mul_.Tensor", at::meta::mul_);
  promote(m, "mul.out", at::meta::mul_outf);
  promote<Tensor, const Tensor&>(m, "div.Tensor", at::meta::div);
  promote<Tensor&, Tensor&>(m, "div_.Tensor", at::meta::div_);
  promote<Tensor&, const Tensor&, Tensor&>(m, "div.out", at::meta::div_outf);
}

}  // namespace

void clear_meta_autocast_cache() {
  cast_cache().clear();
}

Tensor meta_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                      const std::optional<Tensor>& mask, double scale) {
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      q, k, v, /*dropout_p=*/0.0, /*is_causal=*/!mask, mask, scale));
}

}  // namespace tinyllama

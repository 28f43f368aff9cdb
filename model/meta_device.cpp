#include "model/meta_device.hpp"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>

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

// A library for `key`, under which operators that are not registered pass through.
torch::Library passing_others_through(c10::DispatchKey key) {
  if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) {
    static std::vector<torch::Library> fallbacks;
    fallbacks.emplace_back(torch::Library::IMPL, "_", key, __FILE__, __LINE__)
        .fallback(torch::CppFunction::makeFallthrough());
  }
  return {torch::Library::IMPL, "aten", key, __FILE__, __LINE__};
}

// The operators of the model that autocast runs in its type; in the others the layers choose the
// type by themselves, wherever autocast would (softmax, norms, loss).
void register_autocast() {
  static torch::Library m = passing_others_through(c10::DispatchKey::AutocastPrivateUse1);
  m.impl("linear", [](const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return at::_ops::linear::call(cast(x), cast(weight), bias);
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

// What work on the CPU allocates, in order: for what depends on the processor, and is asked of it.
std::vector<int64_t> allocations_of(const std::function<void()>& work) {
  struct Listener final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*address*/, int64_t bytes, size_t /*allocated*/,
                           size_t /*reserved*/, c10::Device /*device*/) override {
      if (bytes > 0) found.push_back(bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::vector<int64_t> found;
  };
  const auto listener = std::make_shared<Listener>();
  const at::NoGradGuard no_grad;
  const c10::DebugInfoGuard listening(c10::DebugInfoKind::PROFILER_STATE, listener);
  work();
  return listener->found;
}

// Answers of such questions, one a type.
bool answer(std::map<c10::ScalarType, bool>& known, c10::ScalarType type,
            const std::function<bool(const at::TensorOptions&)>& ask) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(type); found != known.end()) return found->second;
  bool is_so = false;
  // whoever counts what this thread allocates does not hear of it
  allocations_of([&] { is_so = ask(at::TensorOptions().dtype(type).device(c10::kCPU)); });
  return known[type] = is_so;
}

bool for_cpu(const Tensor& x) {
  return x.is_meta() && meta_stands_for == c10::DeviceType::CPU;
}

void unscale(at::TensorList /*gradients*/, Tensor& /*found*/, const Tensor& /*inverse_scale*/) {}

// The CPU's flash attention takes scratch for each thread: scores of one tile, their maxima and
// sums and a tile of the result, and the scores once more in a narrow type (cpu_flash_attention,
// native/cpu/FlashAttentionKernel.cpp). On a GPU, which a tensor on meta may stand for, there is
// none of this.
struct FlashTile {
  explicit FlashTile(const Tensor& q)
      : rows(std::min<int64_t>(q.size(2), q.size(2) >= 768   ? 256
                                          : q.size(2) >= 192 ? 64
                                                             : 32)),
        columns(std::min<int64_t>(q.size(2), 512)),
        wide(at::promoteTypes(q.scalar_type(), c10::ScalarType::Float)) {}
  // On processors with units for a narrow type, keys and values are reordered where many rows of
  // queries share them.
  bool reorders(const Tensor& q, const Tensor& k) const {
    if (!for_cpu(q) || q.scalar_type() == wide) return false;
    const bool is_bf16 = q.scalar_type() == c10::ScalarType::BFloat16;
    if (q.size(2) < (is_bf16 ? 64 : 16)) return false;
    const int64_t threads = at::get_num_threads();
    const int64_t tiles = q.size(0) * q.size(1) * ((q.size(2) + rows - 1) / rows);
    const auto uses = static_cast<double>((tiles + threads - 1) / threads * rows) /
                      static_cast<double>(q.size(0) * k.size(1));
    static std::map<c10::ScalarType, bool> known;
    return uses >= (is_bf16 ? 4 : 1) &&
           answer(known, q.scalar_type(), [](const at::TensorOptions& options) {
             const Tensor x = at::zeros({1, 1, 128, 16}, options);
             // Result, logarithms, scores twice; then keys, values and a buffer of each thread.
             return allocations_of([&] {
                      at::_scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.0, true);
                    }).size() > 4;
           });
  }
  Tensor scratch(const Tensor& q, int64_t elements, c10::ScalarType type) const {
    return at::empty({for_cpu(q) ? at::get_num_threads() : 0, elements}, q.options().dtype(type));
  }
  int64_t rows;
  int64_t columns;
  c10::ScalarType wide;
};

std::tuple<Tensor, Tensor> flash_attention(const Tensor& q, const Tensor& k, const Tensor& /*v*/,
                                           double /*dropout*/, bool /*causal*/,
                                           const std::optional<Tensor>& /*mask*/,
                                           std::optional<double> /*scale*/) {
  const FlashTile tile(q);
  Tensor out = at::empty_like(q);
  const Tensor log_sum_exp =
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(tile.wide));
  const Tensor scores = tile.scratch(q, tile.rows * (tile.columns + 2 + q.size(3)), tile.wide);
  const Tensor narrow =
      tile.scratch(q, q.scalar_type() == tile.wide ? 0 : tile.rows * tile.columns, q.scalar_type());
  std::vector<Tensor> reordered;
  if (tile.reorders(q, k)) {
    const auto even = [](int64_t n) { return n + n % 2; };
    const int64_t full = (k.size(2) - 1) / tile.columns;
    const int64_t rows = full * even(tile.columns) + even(k.size(2) - full * tile.columns);
    const int64_t keys = q.size(0) * k.size(1) * q.size(3);
    reordered = {at::empty({keys, k.size(2)}, q.options()), at::empty({keys, rows}, q.options()),
                 tile.scratch(q, even(tile.columns) * q.size(3), q.scalar_type())};
  }
  return {out, log_sum_exp.transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor> flash_attention_backward(
    const Tensor& /*gradient*/, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& /*out*/, const Tensor& /*log_sum_exp*/, double /*dropout*/, bool /*causal*/,
    const std::optional<Tensor>& /*mask*/, std::optional<double> /*scale*/) {
  const auto zeros_as = [](const Tensor& x) {
    return at::empty(x.transpose(1, 2).sizes(), x.options()).transpose(1, 2);
  };
  const FlashTile tile(q);
  std::tuple<Tensor, Tensor, Tensor> gradients{zeros_as(q), zeros_as(k), zeros_as(v)};
  const int64_t elements = 2 * tile.rows * tile.columns;
  const Tensor scores = tile.scratch(q, elements, tile.wide);
  const Tensor narrow =
      tile.scratch(q, q.scalar_type() == tile.wide ? 0 : elements, q.scalar_type());
  // Each thread that gets a share of the heads makes sums of its rows.
  const int64_t threads =
      for_cpu(q) ? std::min<int64_t>(at::get_num_threads(), q.size(0) * q.size(1)) : 0;
  const Tensor sums = at::empty({threads, tile.rows}, q.options().dtype(tile.wide));
  return gradients;
}

// Of an operator that works in place, allocates nothing and returns nothing.
void update_nothing(const c10::OperatorHandle& update, c10::Stack* stack) {
  torch::jit::drop(stack, update.schema().arguments().size());
}

void register_missing() {
  static torch::Library m(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  m.impl("index_select", index_select);
  m.impl("embedding_dense_backward", embedding_dense_backward);
  m.impl("_scaled_dot_product_flash_attention_for_cpu", flash_attention);
  m.impl("_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward);
  m.impl("_amp_foreach_non_finite_check_and_unscale_", unscale);
  // Updates in place and allocates nothing.
  m.impl("_fused_adamw_", torch::CppFunction::makeFromBoxedFunction<&update_nothing>());
}

// --- what kernels for CPUs allocate beside their results, and those for meta do not ---

// Every operator passes through the kernels of this key, above autograd's, while it is included on
// a thread. libtorch keeps it for tests.
constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMode);
}

void touch(int64_t bytes, const Tensor& like) {
  at::empty({bytes}, like.options().dtype(c10::ScalarType::Byte));
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

// Of operators whose first two arguments are the operands.
void with_promoted_operands(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const auto promoted = promoted_operands(arguments[0].toTensor(), arguments[1].toTensor());
  op.redispatchBoxed(below(keys), stack);
}

// Autograd adds a gradient in place to one that nobody else holds, but not on meta (accumulate and
// can_accumulate_inplace, torch/csrc/autograd/input_buffer.cpp).
bool is_sum_of_gradients(const Tensor& a) {
  return a.is_meta() && torch::autograd::get_current_graph_task_id() != -1 &&
         !at::GradMode::is_enabled() && a.is_non_overlapping_and_dense() && a.use_count() == 1 &&
         a.has_storage() && a.storage().use_count() == 1;
}

Tensor add(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b, const at::Scalar& alpha) {
  if (is_sum_of_gradients(a)) return at::_ops::add__Tensor::call(const_cast<Tensor&>(a), b, alpha);
  const auto promoted = promoted_operands(a, b);
  return at::_ops::add_Tensor::redispatch(below(keys), a, b, alpha);
}

// A sum, divided in place by a number (mean_kernel_impl's caller, native/ReduceOps.cpp).
Tensor mean(c10::DispatchKeySet keys, const Tensor& x, at::OptionalIntArrayRef dims, bool keep,
            std::optional<c10::ScalarType> type) {
  Tensor result = at::_ops::mean_dim::redispatch(below(keys), x, dims, keep, type);
  if (for_cpu(x)) touch(8 + result.element_size(), x);
  return result;
}

// A transposed matrix is copied by blocks of 60 x 60, through a buffer of one
// (copy_transpose_valid, native/Copy.cpp).
Tensor& copy(c10::DispatchKeySet keys, Tensor& to, const Tensor& from, bool non_blocking) {
  constexpr int64_t kBlock = 60;
  if (for_cpu(to) && from.dim() == 2 && from.numel() >= kBlock * kBlock && to.is_contiguous() &&
      from.stride(0) == 1 && from.stride(1) == from.size(0) && to.sizes() == from.sizes() &&
      to.scalar_type() == from.scalar_type())
    touch(kBlock * kBlock * to.element_size(), to);
  return at::_ops::copy_::redispatch(below(keys), to, from, non_blocking);
}

// oneDNN multiplies matrices that are dense in either order, and others after a copy
// (mkldnn_matmul, native/mkldnn/Matmul.cpp); libtorch chooses it by type, processor and size.
bool is_dense(const Tensor& x) {
  return x.is_contiguous() ||
         (x.stride(0) == x.size(1) * x.size(2) && x.stride(1) == 1 && x.stride(2) == x.size(1));
}

bool uses_onednn(const Tensor& a, const Tensor& b) {
  const int64_t m = a.size(1), k = a.size(2), n = b.size(2);
  if (std::min({m, k, n}) <= 8 || m * k * n <= 8192) return false;
  static std::map<c10::ScalarType, bool> known;
  return answer(known, a.scalar_type(), [](const at::TensorOptions& options) {
    const Tensor x = at::zeros({2, 32, 48}, options).narrow(2, 0, 32);
    return allocations_of([&] { at::bmm(x, x); }).size() > 1;
  });
}

Tensor bmm(c10::DispatchKeySet keys, const Tensor& a, const Tensor& b) {
  Tensor result = at::_ops::bmm::redispatch(below(keys), a, b);
  std::vector<Tensor> copies;
  for (const Tensor* operand : {&a, &b}) {
    if (for_cpu(a) && !is_dense(*operand) && uses_onednn(a, b))
      copies.push_back(at::empty(operand->sizes(), operand->options()));
  }
  return result;
}

void register_cpu_allocations() {
  static torch::Library m = passing_others_through(kMode);
  for (const char* name :
       {"add_.Tensor", "add.out", "sub.Tensor", "sub_.Tensor", "sub.out", "mul.Tensor",
        "mul_.Tensor", "mul.out", "div.Tensor", "div_.Tensor", "div.out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_promoted_operands>());
  m.impl("add.Tensor", add);
  m.impl("mean.dim", mean);
  m.impl("copy_", copy);
  m.impl("bmm", bmm);
}

}  // namespace

MetaStandsFor::MetaStandsFor(c10::DeviceType device)
    : previous_(meta_stands_for), mode_was_on_(c10::impl::tls_is_dispatch_key_included(kMode)) {
  static const bool registered = [] {
    register_autocast();
    register_missing();
    register_cpu_allocations();
    return true;
  }();
  static_cast<void>(registered);
  meta_stands_for = device;
  c10::impl::tls_set_dispatch_key_included(kMode, true);
}

MetaStandsFor::~MetaStandsFor() {
  meta_stands_for = previous_;
  c10::impl::tls_set_dispatch_key_included(kMode, mode_was_on_);
}

void clear_meta_autocast_cache() {
  cast_cache().clear();
}

Tensor meta_causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0,
                                                                     /*is_causal=*/true, {},
                                                                     scale));
}

}  // namespace tinyllama

#include "benchmarks/instruments/operator_profile.hpp"

#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <set>
#include <sstream>
#include <tuple>

namespace tinyllama::instruments {
namespace {

using Names = std::set<std::string, std::less<>>;

/// The words of a text.
Names names(const char* text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Kineto also gives FLOPs for aten::add and aten::mul, which multiply no matrices.
const Names kCountedGemms = names(R"(
  aten::addmm aten::baddbmm aten::bmm aten::mm)");

// a [m, k] and b [n, k] (model/kernels/gemm.cpp), for which Kineto has no formula.
constexpr std::string_view kTiledGemm = "tinyllama::gemm";

// Their FLOPs are the caller's to know (Cost::opaque_flops), because no event tells how many of the
// masked scores a kernel leaves out.
const Names kAttentionKernels = names(R"(
  aten::_cudnn_attention_backward aten::_cudnn_attention_forward
  aten::_efficient_attention_backward aten::_efficient_attention_forward
  aten::_flash_attention_backward aten::_flash_attention_forward
  aten::_scaled_dot_product_cudnn_attention aten::_scaled_dot_product_cudnn_attention_backward
  aten::_scaled_dot_product_efficient_attention
  aten::_scaled_dot_product_efficient_attention_backward
  aten::_scaled_dot_product_flash_attention aten::_scaled_dot_product_flash_attention_backward
  aten::_scaled_dot_product_flash_attention_for_cpu
  aten::_scaled_dot_product_flash_attention_for_cpu_backward tinyllama::causal_attention
  tinyllama::causal_attention_backward)");

// Operators that touch no element: views, allocations, and those that only call others, which have
// events of their own.
const Names kDispatchOnly = names(R"(
  aten::_fused_sdp_choice aten::_reshape_alias aten::_scaled_dot_product_attention_math
  aten::_unsafe_view aten::as_strided aten::contiguous
  aten::cross_entropy_loss aten::detach aten::embedding_backward aten::empty aten::empty_like
  aten::empty_strided aten::expand aten::linear aten::log_softmax aten::matmul aten::narrow
  aten::new_empty_strided aten::nll_loss aten::nll_loss_nd aten::permute aten::reshape
  aten::resize_
  aten::resolve_conj aten::result_type aten::scaled_dot_product_attention aten::select
  aten::slice aten::softmax aten::split_with_sizes aten::t aten::to aten::transpose
  aten::unsqueeze aten::view)");

// Operators that compute, but multiply no matrices: copies, element by element, reductions,
// look-ups.
const Names kWithoutGemms = names(R"(
  aten::_amp_foreach_non_finite_check_and_unscale_ aten::_amp_update_scale_ aten::_foreach_add_
  aten::_foreach_addcdiv_ aten::_foreach_addcmul_ aten::_foreach_div_ aten::_foreach_lerp_
  aten::_foreach_mul_ aten::_foreach_sqrt aten::_local_scalar_dense aten::_log_softmax
  aten::_log_softmax_backward_data aten::_safe_softmax aten::_softmax aten::_softmax_backward_data aten::_to_copy
  aten::_fused_adamw_ aten::add aten::add_ aten::addcdiv_ aten::addcmul_ aten::all aten::arange aten::cat aten::clone aten::copy_ aten::div
  aten::div_ aten::embedding aten::embedding_dense_backward aten::exp aten::fill_
  aten::index_select aten::isneginf aten::item aten::lerp_ aten::mean aten::mul aten::mul_ aten::ne aten::neg
  aten::nll_loss_backward aten::nll_loss_forward aten::ones_like aten::pow aten::reciprocal
  aten::rsqrt aten::scalar_tensor aten::silu aten::silu_backward aten::slice_backward aten::sqrt aten::sub aten::sum aten::where
  aten::zero_ aten::zeros aten::zeros_like tinyllama::adamw_ tinyllama::add_rms_norm
  tinyllama::add_rms_norm_backward tinyllama::cross_entropy_losses
  tinyllama::cross_entropy_rows_ tinyllama::rms_norm tinyllama::rms_norm_backward
  tinyllama::rotate tinyllama::rotate_backward tinyllama::swiglu tinyllama::swiglu_backward
  tinyllama::swiglu_merged tinyllama::swiglu_merged_backward)");

/// Operators seen so far. libtorch calls back through a plain function pointer, which leaves no
/// other place to count; because the count only grows, each user takes a difference and nobody has
/// to reset it.
std::atomic<int64_t> operators_seen{0};

std::unique_ptr<at::ObserverContext> count_one(const at::RecordFunction&) {
  operators_seen.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

// libkineto's numbers (kineto/ActivityType.h, which not every libtorch installs).
constexpr uint8_t kHostOperator = 0;
constexpr uint8_t kUserAnnotation = 1;
constexpr uint8_t kConcurrentKernel = 5;
constexpr uint8_t kDeviceCopy = 3;
constexpr uint8_t kDeviceFill = 4;
constexpr uint8_t kRuntimeCall = 7;

using torch::autograd::profiler::KinetoEvent;

// On AMD GPUs two libraries compute the same backend; their kernels' names tell which.
std::string attention_library(const std::string& kernel) {
  if (kernel.find("ck_tile") != std::string::npos) return " (CK)";
  return kernel.find("attn_fwd") != std::string::npos ? " (AOTriton)" : "";
}

/// Operators whose FLOPs Kineto need not count: there are none, or the formulas have them.
bool is_known_otherwise(const std::string& name) {
  return kWithoutGemms.contains(name) || kDispatchOnly.contains(name) ||
         kAttentionKernels.contains(name);
}

// Operators are named <namespace>::<name>. Nodes of the autograd graph have no namespace, or the
// engine's own.
bool is_operator(std::string_view name) {
  return name.find("::") != std::string_view::npos && !name.starts_with("autograd::") &&
         !name.starts_with("torch::autograd::");
}

int64_t tiled_flops(const KinetoEvent& event) {
  const auto shapes = event.shapes();
  if (shapes.size() < 2 || shapes[0].size() != 2 || shapes[1].size() != 2) return 0;
  return 2 * shapes[0][0] * shapes[0][1] * shapes[1][0];
}

// A GEMM inside a GEMM is the same one: autocast casts the operands of aten::bmm and calls
// aten::bmm again, and both are recorded.
int64_t sum_outermost(std::vector<const KinetoEvent*> gemms) {
  std::ranges::sort(gemms, opens_before);
  int64_t flops = 0;
  const KinetoEvent* outer = nullptr;
  for (const KinetoEvent* event : gemms) {
    const bool is_inside = outer != nullptr && event->startThreadId() == outer->startThreadId() &&
                           event->endNs() <= outer->endNs();
    if (is_inside) continue;
    flops += static_cast<int64_t>(event->flops());
    outer = event;
  }
  return flops;
}

}  // namespace

bool is_gemm(std::string_view name) {
  return kCountedGemms.contains(name) || name == kTiledGemm;
}

bool is_gemm_like(std::string_view name) {
  constexpr std::string_view parts[] = {"mm",   "matmul", "linear", "convolution",
                                        "gemm", "einsum", "dot",    "attention"};
  const auto is_in = [&](std::string_view part) { return name.find(part) != name.npos; };
  return std::ranges::any_of(parts, is_in);
}

std::string attention_backend_of(std::string_view name) {
  for (const char* const backend : {"flash", "efficient", "cudnn"}) {
    if (name.starts_with(std::string("aten::_scaled_dot_product_") + backend)) return backend;
  }
  return name == "aten::_scaled_dot_product_attention_math" ? "math" : "";
}

bool is_dispatch_only(std::string_view name) {
  return kDispatchOnly.contains(name);
}

int64_t count_operators(const std::function<void()>& work) {
  const at::CallbackHandle handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&count_one).scopes({at::RecordScope::FUNCTION}));
  const auto remove = c10::make_scope_exit([handle] { at::removeCallback(handle); });
  const int64_t before = operators_seen.load(std::memory_order_relaxed);
  work();
  return operators_seen.load(std::memory_order_relaxed) - before;
}

KinetoSession::KinetoSession(const Device& device, const KinetoDetail& detail) : device_(device) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                     detail.shapes, detail.memory,
                                                     /*with_stack=*/false, detail.flops);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_gpu()) activities.insert(ActivityType::CUDA);
  // Kineto writes two lines to standard error for each recording, of a level above its errors. Read
  // when Kineto starts; a level that the user chose stays.
  ::setenv("KINETO_LOG_LEVEL", "6", /*overwrite=*/0);
  // CUPTI that ends after a recording and starts anew for the next one crashes where work was
  // captured in between; torch.profiler leaves it running then as well.
  ::setenv("TEARDOWN_CUPTI", "0", /*overwrite=*/0);
  ::setenv("DISABLE_CUPTI_LAZY_REINIT", "1", /*overwrite=*/0);
  device.synchronize();
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
}

KinetoSession::~KinetoSession() {
  if (!running_) return;
  try {
    torch::autograd::profiler::disableProfiler();
  } catch (const std::exception&) {
    // Another error is on its way already.
  }
}

std::unique_ptr<torch::autograd::profiler::ProfilerResult> KinetoSession::stop() {
  device_.synchronize();  // where this throws, the destructor stops the recording
  running_ = false;
  return torch::autograd::profiler::disableProfiler();
}

bool is_kernel(const KinetoEvent& event, const Device& device) {
  return is_device_work(event, device) && event.activityType() == kConcurrentKernel;
}

bool is_device_work(const KinetoEvent& event, const Device& device) {
  if (!device.is_gpu() || event.deviceType() != device.torch().type()) return false;
  const uint8_t type = event.activityType();
  return type == kConcurrentKernel || type == kDeviceCopy || type == kDeviceFill;
}

bool is_transfer(const KinetoEvent& event, const Device& device) {
  if (!is_device_work(event, device) || event.activityType() != kDeviceCopy) return false;
  const std::string name = event.name();
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  return has("HtoD") || has("DtoH") || has("HostToDevice") || has("DeviceToHost");
}

void SeenWork::add(const KinetoEvent& event, const Device& device) {
  if (!device.is_gpu()) return;
  if (is_device_work(event, device)) {
    kernels += is_kernel(event, device) ? 1 : 0;
    seconds += static_cast<double>(event.durationNs()) * 1e-9;
  } else if (event.activityType() == kRuntimeCall) {
    launches += is_launch(event.name()) ? 1 : 0;
  }
}

std::string SeenWork::lack() const {
  if (kernels > 0 && kernels >= launches) return {};
  std::ostringstream words;
  words << "the profiler saw " << kernels << " kernels of " << launches << " launches";
  return words.str();
}

bool is_launch(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  return has("Launch") && (has("Kernel") || has("Graph"));
}

bool opens_before(const KinetoEvent* a, const KinetoEvent* b) {
  return std::tuple(a->startThreadId(), a->startNs(), b->endNs()) <
         std::tuple(b->startThreadId(), b->startNs(), a->endNs());
}

bool is_host_work(const KinetoEvent& event) {
  const uint8_t type = event.activityType();
  return event.deviceType() == c10::DeviceType::CPU &&
         (type == kHostOperator || type == kUserAnnotation);
}

void keep(const SeenWork& seen, OperatorProfile& profile) {
  profile.lack = seen.lack();
  if (!profile.lack.empty()) return;
  profile.kernels = seen.kernels;
  profile.device_seconds = seen.seconds;
}

OperatorProfile profile_operators(const Device& device, const std::function<void()>& work) {
  KinetoSession session(device, {.shapes = true, .flops = true});
  work();
  const auto result = session.stop();
  OperatorProfile profile;
  std::string library;
  SeenWork seen;
  std::set<std::string> unknown;
  std::vector<const KinetoEvent*> gemms;
  for (const KinetoEvent& event : result->events()) {
    seen.add(event, device);
    if (is_device_work(event, device) && library.empty()) library = attention_library(event.name());
    if (event.deviceType() != c10::DeviceType::CPU) continue;
    const std::string name = event.name();
    const std::string backend = attention_backend_of(name);
    if (!backend.empty()) profile.attention_backend = backend;
    if (kCountedGemms.contains(name)) {
      gemms.push_back(&event);
    } else if (name == kTiledGemm) {
      profile.gemm_flops += tiled_flops(event);
    } else if (is_operator(name) && !is_known_otherwise(name)) {
      unknown.insert(name);
    }
  }
  if (device.is_gpu()) keep(seen, profile);
  profile.gemm_flops += sum_outermost(std::move(gemms));
  profile.unknown_operators.assign(unknown.begin(), unknown.end());
  if (!profile.attention_backend.empty()) profile.attention_backend += library;
  return profile;
}

}  // namespace tinyllama::instruments

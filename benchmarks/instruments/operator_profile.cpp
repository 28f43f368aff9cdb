#include "benchmarks/instruments/operator_profile.hpp"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>
#include <tuple>

namespace tinyllama::instruments {
namespace {

using torch::autograd::profiler::KinetoEvent;

// Products whose FLOPs Kineto computes from their shapes. It also gives FLOPs for aten::add and
// aten::mul, which are no products.
const std::set<std::string_view> kCountedProducts = {"aten::addmm", "aten::baddbmm", "aten::bmm",
                                                     "aten::mm"};

// Attention kernels: their products are the caller's to know (Cost::opaque_flops), because no event
// tells how many of the masked scores a kernel leaves out.
const std::set<std::string_view> kOpaqueProducts = {
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "tinyllama::causal_attention",
    "tinyllama::causal_attention_backward"};

// oneDNN's inner product of [m, k] and [n, k], for which Kineto has no formula.
constexpr std::string_view kOnednnProduct = "mkldnn::_linear_pointwise";

// Operators that compute no products themselves: views, copies, element by element, reductions,
// look-ups; and those that only call other operators, which have events of their own.
const std::set<std::string_view> kWithoutProducts = {
    "aten::_amp_foreach_non_finite_check_and_unscale_",
    "aten::_amp_update_scale_",
    "aten::_foreach_add_",
    "aten::_foreach_addcdiv_",
    "aten::_foreach_addcmul_",
    "aten::_foreach_div_",
    "aten::_foreach_lerp_",
    "aten::_foreach_mul_",
    "aten::_foreach_sqrt",
    "aten::_local_scalar_dense",
    "aten::_log_softmax",
    "aten::_log_softmax_backward_data",
    "aten::_reshape_alias",
    "aten::_softmax",
    "aten::_softmax_backward_data",
    "aten::_to_copy",
    "aten::_unsafe_view",
    "aten::add",
    "aten::add_",
    "aten::addcdiv_",
    "aten::addcmul_",
    "aten::as_strided",
    "aten::cat",
    "aten::clone",
    "aten::contiguous",
    "aten::copy_",
    "aten::cross_entropy_loss",
    "aten::detach",
    "aten::div",
    "aten::div_",
    "aten::embedding",
    "aten::embedding_backward",
    "aten::embedding_dense_backward",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::exp",
    "aten::expand",
    "aten::fill_",
    "aten::index_select",
    "aten::item",
    "aten::lerp_",
    "aten::linear",
    "aten::log_softmax",
    "aten::matmul",
    "aten::mean",
    "aten::mul",
    "aten::mul_",
    "aten::narrow",
    "aten::ne",
    "aten::neg",
    "aten::new_empty_strided",
    "aten::nll_loss",
    "aten::nll_loss_backward",
    "aten::nll_loss_forward",
    "aten::nll_loss_nd",
    "aten::ones_like",
    "aten::permute",
    "aten::pow",
    "aten::reciprocal",
    "aten::reshape",
    "aten::resolve_conj",
    "aten::result_type",
    "aten::rsqrt",
    "aten::scaled_dot_product_attention",
    "aten::select",
    "aten::silu",
    "aten::silu_backward",
    "aten::slice",
    "aten::slice_backward",
    "aten::softmax",
    "aten::split_with_sizes",
    "aten::sqrt",
    "aten::sub",
    "aten::sum",
    "aten::t",
    "aten::to",
    "aten::transpose",
    "aten::view",
    "aten::zero_",
    "aten::zeros",
    "aten::zeros_like",
    "tinyllama::adamw_",
    "tinyllama::add_rms_norm",
    "tinyllama::add_rms_norm_backward",
    "tinyllama::cross_entropy_losses",
    "tinyllama::cross_entropy_rows_",
    "tinyllama::rms_norm",
    "tinyllama::rms_norm_backward",
    "tinyllama::rotate",
    "tinyllama::rotate_backward",
    "tinyllama::swiglu",
    "tinyllama::swiglu_backward",
    "tinyllama::swiglu_merged",
    "tinyllama::swiglu_merged_backward"};

// Operators are named <namespace>::<name>. Nodes of the autograd graph have no namespace, or the
// engine's own.
bool is_operator(std::string_view name) {
  return name.find("::") != std::string_view::npos && !name.starts_with("autograd::") &&
         !name.starts_with("torch::autograd::");
}

int64_t onednn_flops(const KinetoEvent& event) {
  const auto shapes = event.shapes();
  if (shapes.size() < 2 || shapes[0].size() != 2 || shapes[1].size() != 2) return 0;
  return 2 * shapes[0][0] * shapes[0][1] * shapes[1][0];
}

// A product inside a product is the same one: autocast casts the operands of aten::bmm and calls
// aten::bmm again, and both are recorded.
int64_t sum_outermost(std::vector<const KinetoEvent*> products) {
  std::ranges::sort(products, [](const KinetoEvent* a, const KinetoEvent* b) {
    return std::tuple(a->startThreadId(), a->startNs(), b->endNs()) <
           std::tuple(b->startThreadId(), b->startNs(), a->endNs());
  });
  int64_t flops = 0;
  const KinetoEvent* outer = nullptr;
  for (const KinetoEvent* event : products) {
    const bool is_inside = outer != nullptr && event->startThreadId() == outer->startThreadId() &&
                           event->endNs() <= outer->endNs();
    if (is_inside) continue;
    flops += static_cast<int64_t>(event->flops());
    outer = event;
  }
  return flops;
}

/// Kineto lists kernels, copies, fills and annotations of the device alike; only the activity type
/// tells them apart.
bool is_kernel(const KinetoEvent& event, c10::DeviceType device) {
  if (event.deviceType() != device) return false;
  // libkineto's number of CONCURRENT_KERNEL (kineto/ActivityType.h, which not every libtorch
  // installs).
  constexpr uint8_t concurrent_kernel = 5;
  return event.activityType() == concurrent_kernel;
}

// Kineto writes two lines to standard error for each recording, of a level above its errors. Read
// when Kineto starts; a level that the user chose stays.
void quiet_kineto() {
  ::setenv("KINETO_LOG_LEVEL", "6", /*overwrite=*/0);
}

std::unique_ptr<torch::autograd::profiler::ProfilerResult> record(
    const Device& device, const std::function<void()>& work) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                     /*report_input_shapes=*/true,
                                                     /*profile_memory=*/false,
                                                     /*with_stack=*/false, /*with_flops=*/true);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_gpu()) activities.insert(ActivityType::CUDA);
  quiet_kineto();
  device.synchronize();
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  try {
    work();
    device.synchronize();
  } catch (...) {
    profiler::disableProfiler();
    throw;
  }
  return profiler::disableProfiler();
}

}  // namespace

OperatorProfile profile_operators(const Device& device, const std::function<void()>& work) {
  const auto result = record(device, work);
  OperatorProfile profile;
  if (device.is_gpu()) profile.kernels = 0;
  std::set<std::string> unknown;
  std::vector<const KinetoEvent*> products;
  for (const KinetoEvent& event : result->events()) {
    if (device.is_gpu() && is_kernel(event, device.torch().type())) ++*profile.kernels;
    if (event.deviceType() != c10::DeviceType::CPU) continue;
    const std::string name = event.name();
    if (kCountedProducts.contains(name)) {
      products.push_back(&event);
    } else if (name == kOnednnProduct) {
      profile.product_flops += onednn_flops(event);
    } else if (is_operator(name) && !kWithoutProducts.contains(name) &&
               !kOpaqueProducts.contains(name)) {
      unknown.insert(name);
    }
  }
  profile.product_flops += sum_outermost(std::move(products));
  profile.unknown_operators.assign(unknown.begin(), unknown.end());
  return profile;
}

}  // namespace tinyllama::instruments

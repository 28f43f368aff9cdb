#include "benchmarks/instruments/operator_kinds.hpp"

#include <set>

namespace tinyllama::instruments {
namespace {

using Names = std::set<std::string_view>;

// Kineto also gives FLOPs for aten::add and aten::mul, which are no products.
const Names kCountedProducts = {"aten::addmm", "aten::baddbmm", "aten::bmm", "aten::mm"};

// Attention kernels: their products are the caller's to know (Cost::opaque_flops), because no event
// tells how many of the masked scores a kernel leaves out.
const Names kOpaqueProducts = {"aten::_scaled_dot_product_cudnn_attention",
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
const Names kWithoutProducts = {"aten::_amp_foreach_non_finite_check_and_unscale_",
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

const Names kDispatchOnly = {"aten::_reshape_alias",
                             "aten::_unsafe_view",
                             "aten::as_strided",
                             "aten::contiguous",
                             "aten::cross_entropy_loss",
                             "aten::detach",
                             "aten::embedding_backward",
                             "aten::empty",
                             "aten::empty_like",
                             "aten::empty_strided",
                             "aten::expand",
                             "aten::linear",
                             "aten::log_softmax",
                             "aten::matmul",
                             "aten::narrow",
                             "aten::new_empty_strided",
                             "aten::nll_loss",
                             "aten::nll_loss_nd",
                             "aten::permute",
                             "aten::reshape",
                             "aten::resolve_conj",
                             "aten::result_type",
                             "aten::scaled_dot_product_attention",
                             "aten::select",
                             "aten::slice",
                             "aten::softmax",
                             "aten::split_with_sizes",
                             "aten::t",
                             "aten::to",
                             "aten::transpose",
                             "aten::view"};

}  // namespace

bool is_counted_product(std::string_view name) {
  return kCountedProducts.contains(name);
}

bool is_onednn_product(std::string_view name) {
  return name == kOnednnProduct;
}

bool is_attention_kernel(std::string_view name) {
  return kOpaqueProducts.contains(name);
}

bool is_without_products(std::string_view name) {
  return kWithoutProducts.contains(name);
}

bool is_dispatch_only(std::string_view name) {
  return kDispatchOnly.contains(name);
}

}  // namespace tinyllama::instruments

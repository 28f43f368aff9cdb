// The attention kernels that libtorch has for GPUs, with their shapes and choices: flash for 16-bit
// types, without a mask; memory-efficient for float32 and masks, but not for grouped heads; math
// for the rest. Both compute by the CPU's flash kernel.
#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "tests/fakes/gpu/fake_gpu.hpp"
#include "tests/fakes/gpu/host_tensors.hpp"

namespace fake_gpu {
namespace {

using at::Tensor;
using Mask = std::optional<Tensor>;
using Scale = std::optional<double>;

enum Backend : int64_t { kNone = -1, kMath = 0, kFlash = 1, kEfficient = 2 };

int64_t choose(const Tensor& q, const Tensor& k, const Tensor&, const Mask& mask, double, bool,
               Scale, bool) {
  const auto& context = at::globalContext();
  const bool is_narrow = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  const bool may_fuse = settings().has_flash_attention && q.scalar_type() != at::kDouble;
  const bool has_mask = mask && mask->defined();
  if (may_fuse && is_narrow && !has_mask && context.userEnabledFlashSDP()) return kFlash;
  const bool is_grouped = q.size(1) != k.size(1);
  if (may_fuse && !is_grouped && context.userEnabledMemEfficientSDP()) return kEfficient;
  return context.userEnabledMathSDP() ? kMath : kNone;
}

Tensor empty_as(const Tensor& like, at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, like.options().dtype(type));
}

// [batch, heads, seq, head dim], in memory [batch, seq, heads, head dim], as its inputs usually
// are.
Tensor transposed_as(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

std::string kernel_name(const char* pass) {
  return std::string(settings().is_nvidia ? "flash_" : "attn_") + pass +
         (settings().is_nvidia ? "_kernel" : "");
}

std::pair<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Mask& mask, bool is_causal, Scale scale) {
  const c10::DeviceGuard guard(q.device());
  const Tensor out = transposed_as(q);
  const Tensor log_sum = empty_as(q, {q.size(0), q.size(1), q.size(2)}, at::kFloat);
  HostTensors host;
  launch(current_stream(q.get_device()), kernel_name("fwd"), Work::kernel,
         [=, q = host.on_host(q), k = host.on_host(k), v = host.on_host(v),
          mask = mask ? Mask(host.on_host(*mask)) : mask, out = host.on_host(out),
          log_sum = host.on_host(log_sum)] {
           const auto [values, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
               q, k, v, /*dropout_p=*/0.0, is_causal, mask, scale);
           out.copy_(values);
           log_sum.copy_(sums);
         });
  return {out, log_sum};
}

std::array<Tensor, 3> backward(const Tensor& gradient, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& out, const Tensor& log_sum,
                               const Mask& mask, bool is_causal, Scale scale) {
  const c10::DeviceGuard guard(q.device());
  std::array<Tensor, 3> gradients = {transposed_as(q), transposed_as(k), transposed_as(v)};
  HostTensors host;
  launch(current_stream(q.get_device()), kernel_name("bwd"), Work::kernel,
         [=, gradient = host.on_host(gradient), q = host.on_host(q), k = host.on_host(k),
          v = host.on_host(v), out = host.on_host(out), log_sum = host.on_host(log_sum),
          mask = mask && mask->defined() ? Mask(host.on_host(*mask)) : Mask(),
          to_q = host.on_host(gradients[0]), to_k = host.on_host(gradients[1]),
          to_v = host.on_host(gradients[2])] {
           const auto [of_q, of_k, of_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
               gradient, q, k, v, out, log_sum, /*dropout_p=*/0.0, is_causal, mask, scale);
           to_q.copy_(of_q);
           to_k.copy_(of_k);
           to_v.copy_(of_v);
         });
  return gradients;
}

using Flash =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Flash flash(const Tensor& q, const Tensor& k, const Tensor& v, double, bool is_causal, bool,
            Scale scale) {
  const auto [out, log_sum] = forward(q, k, v, {}, is_causal, scale);
  // the state of a random generator that was not asked, and a tensor that stays empty
  const Tensor random = empty_as(q, {2}, at::kUInt64), unused = empty_as(q, {}, at::kUInt64);
  return {out,      log_sum,       Tensor(),
          Tensor(), q.sym_size(2), k.sym_size(2),
          random,   unused,        empty_as(q, {0}, q.scalar_type())};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& gradient, const Tensor& q,
                                                  const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& log_sum,
                                                  const Tensor&, const Tensor&, c10::SymInt,
                                                  c10::SymInt, double, bool is_causal,
                                                  const Tensor&, const Tensor&, Scale scale) {
  const auto [of_q, of_k, of_v] = backward(gradient, q, k, v, out, log_sum, {}, is_causal, scale);
  return {of_q, of_k, of_v};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Mask& mask, bool,
                                                     double, bool is_causal, Scale scale) {
  const auto [out, log_sum] = forward(q, k, v, mask, is_causal, scale);
  return {out, log_sum, empty_as(q, {}, at::kLong), empty_as(q, {}, at::kLong)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& gradient, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
    const Tensor& out, const Tensor& log_sum, const Tensor&, const Tensor&, double,
    std::array<bool, 4>, bool is_causal, Scale scale) {
  const auto [of_q, of_k, of_v] = backward(gradient, q, k, v, out, log_sum, mask, is_causal, scale);
  return {of_q, of_k, of_v, Tensor()};
}

struct Choice {
  Choice() { at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose); }
} const choice;

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_fused_sdp_choice", &choose);
  library.impl("_scaled_dot_product_flash_attention", &flash);
  library.impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
  library.impl("_scaled_dot_product_efficient_attention", &efficient);
  library.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
}

}  // namespace fake_gpu

#include "model/optimized.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/kernels/gpu_launch.hpp"
#include "model/products.hpp"
#include "model/step_graph.hpp"

namespace tinyllama {
bool DeviceTraits::has_fast_products(Dtype dtype) const {
  switch (compute_type(dtype)) {
    case c10::ScalarType::BFloat16:
      return fast_bf16_products;
    case c10::ScalarType::Half:
      return fast_f16_products;
    default:
      return true;
  }
}

DeviceTraits device_traits(c10::DeviceType device) {
  DeviceTraits traits;
  traits.is_gpu = device != c10::DeviceType::CPU;
  if (traits.is_gpu) {
    traits.fast_bf16_products = traits.fast_f16_products = true;
    traits.has_own_kernels = kernels::has_gpu_kernels();
    traits.has_graphs = can_capture(device);
    return traits;
  }
  traits.has_onednn = has_onednn_product();
#ifdef __x86_64__
  traits.fast_bf16_products = __builtin_cpu_supports("avx512bf16");
  traits.fast_f16_products = __builtin_cpu_supports("avx512fp16");
  traits.fast_onednn_f32 =
      traits.has_onednn && __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f");
#endif
  return traits;
}

Variant optimized_variant(Dtype dtype, const DeviceTraits& traits) {
  // What a library has. No GPU has measured any rule for GPUs yet.
  if (!traits.has_own_kernels) {
    return Variant({Switch::qkv, Switch::gate_up, Switch::sdpa, Switch::foreach_adamw})
        .named_optimized();
  }
  // Each is worth its place: results/ABLATION.md, "optimized without".
  Variant best({Switch::qkv, Switch::gate_up, Switch::fused_swiglu, Switch::fused_norm,
                Switch::fused_rotary, Switch::fused_loss, Switch::fused_adamw});
  // On two cores with AVX-512, forward and backward of tiny, batch 4 and 16: at S = 64, 128, 512 in
  // 0.88 to 0.95, 0.79 to 0.85, 0.49 to 0.50 of the time that products with a score matrix take,
  // and always in less than sdpa; in bf16 in 0.84 to 0.87, 0.73 to 0.74, 0.42.
  best = best.with(traits.is_gpu ? Switch::sdpa : Switch::fused_attention);
  // oneDNN where the default BLAS leaves half of the processor unused, and float32 where bf16 and
  // f16 have no units: README, "Measured here".
  if (dtype == Dtype::f32 && traits.fast_onednn_f32) best = best.with(Switch::onednn);
  if (!traits.has_fast_products(dtype)) {
    best = best.with(Switch::wide_products);
    if (traits.fast_onednn_f32) best = best.with(Switch::onednn);
  }
  return best.named_optimized();
}

std::vector<DeviceTraits> processors_like(const DeviceTraits& traits) {
  if (traits.is_gpu) return {traits};
  std::vector<DeviceTraits> all;
  for (const bool fast_bf16 : {false, true}) {
    for (const bool fast_f16 : {false, true}) {
      for (const bool fast_onednn : {false, true}) {
        DeviceTraits processor = traits;
        processor.fast_bf16_products = fast_bf16;
        processor.fast_f16_products = fast_f16;
        processor.fast_onednn_f32 = fast_onednn && traits.has_onednn;
        all.push_back(processor);
      }
    }
  }
  return all;
}

Variant resolved(const Variant& variant, Dtype dtype, const DeviceTraits& traits) {
  return variant.is_optimized() ? optimized_variant(dtype, traits) : variant;
}

std::vector<Variant> runnable_variants(Dtype dtype, const DeviceTraits& traits) {
  std::vector<Variant> variants{Variant()};
  for (const Switch option : all_switches()) variants.push_back(Variant({option}));
  variants.push_back(Variant::fused());
  for (const DeviceTraits& other : processors_like(traits)) {
    // Without the name, which here stands for another set.
    const Variant elsewhere(optimized_variant(dtype, other).switches());
    if (std::find(variants.begin(), variants.end(), elsewhere) == variants.end())
      variants.push_back(elsewhere);
  }
  const Variant here = optimized_variant(dtype, traits);
  std::erase(variants, Variant(here.switches()));
  variants.push_back(here);
  std::erase_if(variants, [&](const Variant& variant) {
    return !refuse_variant(variant, dtype, traits).empty();
  });
  return variants;
}

}  // namespace tinyllama

#include "model/variant.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "model/gemm.hpp"
#include "model/kernels/gpu_launch.hpp"
#include "model/slowdown.hpp"
#include "model/train_step.hpp"

namespace tinyllama {
namespace {

std::string needs_own_kernel(const Variant&, Dtype, const DeviceTraits& traits) {
  return traits.has_own_kernels ? "" : "this build has no kernel of ours for GPUs";
}

std::string refuse_fused_attention(const Variant&, Dtype, const DeviceTraits& traits) {
  return traits.is_gpu ? "our kernel is for CPUs; sdpa is the GPU's" : "";
}

std::string refuse_onednn(const Variant& variant, Dtype dtype, const DeviceTraits& traits) {
  if (traits.is_gpu) return "a library for CPUs; this is a GPU";
  if (!traits.has_onednn) return "this libtorch has no oneDNN GEMM (mkldnn::_linear_pointwise)";
  if (dtype != Dtype::f32 && !variant.has(Switch::wide_products)) {
    return fmt::format("changes float32 GEMMs; those of {} go through oneDNN anyway",
                       to_string(dtype));
  }
  return {};
}

std::string refuse_wide_products(const Variant&, Dtype dtype, const DeviceTraits& traits) {
  if (traits.is_gpu) return "for CPUs without units for narrow GEMMs; this is a GPU";
  if (compute_bytes(dtype) >= 4)
    return fmt::format("{} is not narrower than float32", to_string(dtype));
  return {};
}

std::string refuse_graph(const Variant& variant, Dtype dtype, const DeviceTraits& traits) {
  if (!traits.is_gpu) return "only a GPU captures its work; this is a CPU";
  if (!traits.has_graphs) return "this libtorch cannot capture work of this device";
  if (dtype == Dtype::amp_f16)
    return "the loss scaling of amp_f16 looks at the gradients from the host in every step";
  if (storage_bytes(dtype) < 4 && !variant.has(Switch::fused_adamw)) {
    return fmt::format(
        "with parameters in {} it needs fused_adamw, whose corrections stay in float64",
        to_string(dtype));
  }
  return {};
}

using Exclusion = SwitchDescriptor::Exclusion;
constexpr Exclusion kNotWithLayout[] = {{Switch::layout,
                                         "the parts of a merged weight stored [in, out] are not "
                                         "contiguous, so that each gradient would "
                                         "be copied"}};
constexpr Exclusion kNotWithFusedAttention[] = {
    {Switch::fused_attention, "both replace the attention core"}};
constexpr Exclusion kNotWithFusedAdamW[] = {{Switch::fused_adamw, "both replace the update"}};

consteval ModelParts in(auto... parts) {
  return {parts...};
}
constexpr std::span<const Exclusion> kNothing;

// Row i describes Switch(i): name, what it changes, where, what it excludes, what refuses it.
constexpr SwitchDescriptor kSwitches[] = {
    {Switch::qkv, "qkv", "one projection for Q, K and V", in(ModelPart::attention), kNotWithLayout},
    {Switch::gate_up, "gate_up", "one projection for gate and up", in(ModelPart::ffn),
     kNotWithLayout},
    {Switch::fused_swiglu, "fused_swiglu", "silu(gate) * up in one pass", in(ModelPart::ffn),
     kNothing, needs_own_kernel},
    {Switch::sdpa, "sdpa", "the library's scaled_dot_product_attention", in(ModelPart::attention),
     kNotWithFusedAttention},
    {Switch::fused_attention, "fused_attention", "causal attention in tiles, no score matrix",
     in(ModelPart::attention), kNothing, refuse_fused_attention},
    {Switch::fused_norm, "fused_norm", "RMSNorm and the residual sum before it",
     in(ModelPart::rms_norm), kNothing, needs_own_kernel},
    {Switch::fused_rotary, "fused_rotary", "rotary embedding in one pass", in(ModelPart::rotary),
     kNothing, needs_own_kernel},
    {Switch::fused_loss, "fused_loss", "LM head and loss by chunks of tokens", in(ModelPart::loss),
     kNothing, needs_own_kernel},
    {Switch::foreach_adamw, "foreach_adamw", "AdamW by operators over lists",
     in(ModelPart::optimizer), kNotWithFusedAdamW},
    {Switch::fused_adamw, "fused_adamw", "AdamW in one pass", in(ModelPart::optimizer), kNothing,
     needs_own_kernel},
    {Switch::checkpoint, "checkpoint", "blocks computed again in the backward",
     in(ModelPart::block)},
    {Switch::onednn, "onednn", "float32 GEMMs through oneDNN (CPU)",
     in(ModelPart::attention, ModelPart::ffn, ModelPart::loss), kNothing, refuse_onednn},
    {Switch::wide_products, "wide_products", "narrow GEMMs computed in float32 (CPU)",
     in(ModelPart::attention, ModelPart::ffn, ModelPart::loss), kNothing, refuse_wide_products},
    {Switch::graph, "graph", "the step captured once and replayed (GPU)", in(ModelPart::full_step),
     kNothing, refuse_graph},
    {Switch::layout, "layout", "weights stored [in, out]",
     in(ModelPart::attention, ModelPart::ffn, ModelPart::loss, ModelPart::optimizer)},
};

template <class Enum, class Row, size_t count>
consteval bool in_order(const Row (&rows)[count], Enum Row::*field) {
  for (size_t i = 0; i < count; ++i) {
    if (rows[i].*field != static_cast<Enum>(i)) return false;
  }
  return count == static_cast<size_t>(Enum::count);
}
static_assert(in_order(kSwitches, &SwitchDescriptor::option),
              "row i of kSwitches must describe Switch(i)");

struct PartRow {
  ModelPart part;
  /// What it is made of, beside work of its own.
  ModelParts made_of;
};
constexpr PartRow kParts[] = {
    {ModelPart::embedding, {}},
    {ModelPart::rms_norm, {}},
    {ModelPart::rotary, {}},
    {ModelPart::attention, {ModelPart::rotary}},
    {ModelPart::ffn, {}},
    {ModelPart::block, {ModelPart::rms_norm, ModelPart::attention, ModelPart::ffn}},
    {ModelPart::loss, {}},
    {ModelPart::model,
     {ModelPart::embedding, ModelPart::block, ModelPart::rms_norm, ModelPart::loss}},
    {ModelPart::optimizer, {}},
    {ModelPart::full_step, {ModelPart::model, ModelPart::optimizer}},
};
static_assert(in_order(kParts, &PartRow::part), "row i of kParts must be of ModelPart(i)");

bool changes(const SwitchDescriptor& candidate, ModelPart part) {
  if (candidate.parts.has(part)) return true;
  const ModelParts& made_of = kParts[static_cast<size_t>(part)].made_of;
  return std::ranges::any_of(kParts, [&](const PartRow& inner) {
    return made_of.has(inner.part) && changes(candidate, inner.part);
  });
}

[[noreturn]] void refuse(std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto& candidate : kSwitches) names.push_back(candidate.name);
  throw std::invalid_argument(
      fmt::format("variant '{}': must be baseline, fused, optimized, or switches joined by '+': {}",
                  text, fmt::join(names, ", ")));
}

}  // namespace

const SwitchDescriptor& descriptor(Switch option) {
  return kSwitches[static_cast<size_t>(option)];
}

std::span<const Switch> all_switches() {
  static constexpr auto all = [] {
    std::array<Switch, std::size(kSwitches)> options{};
    for (size_t i = 0; i < options.size(); ++i) options[i] = kSwitches[i].option;
    return options;
  }();
  return all;
}

std::vector<Switch> switches_of(ModelPart part) {
  std::vector<Switch> found;
  for (const SwitchDescriptor& candidate : kSwitches) {
    if (changes(candidate, part)) found.push_back(candidate.option);
  }
  return found;
}

Variant::Variant(std::span<const Switch> switches) {
  for (const Switch option : switches) bits_ |= bit(option);
}

Variant Variant::fused() {
  return Variant(
      {Switch::qkv, Switch::gate_up, Switch::fused_swiglu, Switch::sdpa, Switch::fused_adamw});
}

Variant Variant::unresolved_optimized() {
  return Variant().named_optimized();
}

Variant Variant::parse(std::string_view text) {
  if (text == "baseline") return {};
  if (text == "optimized") return unresolved_optimized();
  Variant variant;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    const auto* const found = std::ranges::find(kSwitches, name, &SwitchDescriptor::name);
    if (found != std::end(kSwitches)) {
      variant.bits_ |= bit(found->option);
    } else if (name == "fused") {
      variant.bits_ |= fused().bits_;
    } else if (name == "optimized") {
      throw std::invalid_argument(fmt::format(
          "variant '{}': optimized stands alone, because its switches depend on the case; spell "
          "out the switches that a case's label gives for it",
          text));
    } else {
      refuse(text);
    }
    begin = end + 1;
  }
  const std::string contradiction = variant.contradiction();
  if (!contradiction.empty())
    throw std::invalid_argument(fmt::format("variant '{}': {}", text, contradiction));
  return variant;
}

bool Variant::has_any(std::span<const Switch> options) const {
  return std::any_of(options.begin(), options.end(), [&](Switch option) { return has(option); });
}

Variant Variant::with(Switch option) const {
  Variant changed = *this;
  changed.bits_ |= bit(option);
  changed.optimized_ = false;
  return changed;
}

Variant Variant::without(Switch option) const {
  Variant changed = *this;
  changed.bits_ &= ~bit(option);
  changed.optimized_ = false;
  return changed;
}

Variant Variant::named_optimized() const {
  Variant named = *this;
  named.optimized_ = true;
  return named;
}

std::vector<Switch> Variant::switches() const {
  std::vector<Switch> chosen;
  for (const Switch option : all_switches()) {
    if (has(option)) chosen.push_back(option);
  }
  return chosen;
}

std::string Variant::name() const {
  if (optimized_) return "optimized";
  if (*this == fused()) return "fused";
  return switch_names();
}

std::string Variant::switch_names() const {
  if (bits_ == 0) return "baseline";
  std::vector<std::string_view> names;
  for (const Switch option : switches()) names.push_back(to_string(option));
  return fmt::format("{}", fmt::join(names, "+"));
}

std::string Variant::contradiction() const {
  for (const Switch option : switches()) {
    for (const auto& [other, reason] : descriptor(option).excludes) {
      if (has(other)) {
        return fmt::format("{} and {} exclude each other: {}", to_string(option), to_string(other),
                           reason);
      }
    }
  }
  return {};
}

bool DeviceTraits::has_fast_gemm(Dtype dtype) const {
  switch (compute_type(dtype)) {
    case c10::ScalarType::BFloat16:
      return fast_bf16_gemm;
    case c10::ScalarType::Half:
      return fast_f16_gemm;
    default:
      return true;
  }
}

DeviceTraits device_traits(c10::DeviceType device) {
  DeviceTraits traits;
  traits.is_gpu = device != c10::DeviceType::CPU;
  if (traits.is_gpu) {
    traits.fast_bf16_gemm = traits.fast_f16_gemm = true;
    traits.has_own_kernels = kernels::has_gpu_kernels();
    traits.has_graphs = can_capture(device);
    return traits;
  }
  traits.has_onednn = has_onednn_gemm();
#ifdef __x86_64__
  traits.fast_bf16_gemm = __builtin_cpu_supports("avx512bf16");
  traits.fast_f16_gemm = __builtin_cpu_supports("avx512fp16");
  traits.fast_onednn_f32 =
      traits.has_onednn && __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f");
#endif
  return traits;
}

std::string refuse_variant(const Variant& variant, Dtype dtype, const DeviceTraits& traits) {
  if (std::string slowdown = refuse_slowdown(traits.is_gpu, variant.has(Switch::checkpoint));
      !slowdown.empty())
    return slowdown;
  for (const Switch option : variant.switches()) {
    const SwitchDescriptor& chosen = descriptor(option);
    if (chosen.refusal == nullptr) continue;
    const std::string refusal = chosen.refusal(variant, dtype, traits);
    if (!refusal.empty()) return fmt::format("{}: {}", chosen.name, refusal);
  }
  return {};
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
  // 0.88 to 0.95, 0.79 to 0.85, 0.49 to 0.50 of the time that GEMMs with a score matrix take,
  // and always in less than sdpa; in bf16 in 0.84 to 0.87, 0.73 to 0.74, 0.42.
  best = best.with(traits.is_gpu ? Switch::sdpa : Switch::fused_attention);
  // oneDNN where the default BLAS leaves half of the processor unused, and float32 where bf16 and
  // f16 have no units: README, "Measured here".
  if (dtype == Dtype::f32 && traits.fast_onednn_f32) best = best.with(Switch::onednn);
  if (!traits.has_fast_gemm(dtype)) {
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
        processor.fast_bf16_gemm = fast_bf16;
        processor.fast_f16_gemm = fast_f16;
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

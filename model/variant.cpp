#include "model/variant.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>

#include "model/attention.hpp"
#include "model/gemm.hpp"
#include "model/kernels/launch.hpp"

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define TINYLLAMA_HAS_GRAPHS
#endif
#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace tinyllama {
namespace {

#ifdef __x86_64__
// GCC 11's __builtin_cpu_supports does not know it. Leaf 7, bit 23 of EDX (Intel's manual, CPUID).
bool has_avx512_fp16() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx >> 23 & 1) != 0;
}
#endif

struct Exclusion {
  Switch other;
  std::string_view reason;
};

using Refusal = std::string (*)(const Variant&, Dtype, const DeviceTraits&);

struct Descriptor {
  Switch option;
  std::string_view name;
  std::string_view description;
  Parts changes{};
  bool needs_own_kernel = false;
  /// Switches that it does not go with; said once a pair.
  std::array<Exclusion, 2> excludes{};  // of which those with a reason count
  /// Empty, or why it cannot run; without the switch's name.
  Refusal refuse = nullptr;
  /// The slot whose operator it makes way for, with the reason why they exclude each other.
  std::optional<Slot> gives_way_to = std::nullopt;
  std::string_view gives_way_because = "both fill that slot";
};

std::string refuse_on_gpu(const Variant& /*variant*/, Dtype /*dtype*/, const DeviceTraits& traits) {
  return traits.is_gpu ? "our kernel is for CPUs; a GPU has the library's" : "";
}

std::string refuse_sdpa(const Variant& /*variant*/, Dtype dtype, const DeviceTraits& traits) {
  if (traits.has_library_attention(dtype)) return {};
  return fmt::format(
      "in {} the library computes a score matrix here, as the baseline does (its math backend, "
      "which "
      "--sdpa-backend math of tiny_llama_bench asks for). For its kernels on Radeon cards set "
      "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1",
      to_string(dtype));
}

std::string refuse_wide_gemm(const Variant& /*variant*/, Dtype dtype, const DeviceTraits& traits) {
  if (traits.is_gpu) return "for CPUs without units for narrow GEMMs; this is a GPU";
  if (compute_bytes(dtype) < 4) return {};
  return fmt::format("{} is not narrower than float32", to_string(dtype));
}

std::string refuse_graph(const Variant& variant, Dtype dtype, const DeviceTraits& traits) {
  if (!traits.is_gpu) return "only a GPU captures its work; this is a CPU";
  if (!traits.has_graphs) return "this libtorch cannot capture work of this device";
  if (dtype == Dtype::amp_f16)
    return "the loss scaling of amp_f16 looks at the gradients from the host in every step";
  const bool corrects_wide = variant.has(Switch::fused_adamw) || variant.has(Switch::library_adamw);
  if (storage_bytes(dtype) >= 4 || corrects_wide) return {};
  return fmt::format(
      "with parameters in {} it needs fused_adamw or library_adamw, whose corrections are wider",
      to_string(dtype));
}

constexpr std::string_view kOneWeight = "the operator multiplies by one weight [out, in] at a time";

constexpr std::string_view kOneUpdate = "both replace the update";

constexpr std::string_view kNotContiguous =
    "the parts of a merged weight stored [in, out] are not contiguous, so that each gradient would "
    "be copied";

constexpr std::array kSwitches = {
    Descriptor{.option = Switch::qkv,
               .name = "qkv",
               .description = "one projection for Q, K and V",
               .changes = Part::attention,
               .excludes = {{{Switch::layout, kNotContiguous}}},
               .gives_way_to = Slot::linear,
               .gives_way_because = kOneWeight},
    Descriptor{.option = Switch::gate_up,
               .name = "gate_up",
               .description = "one projection for gate and up",
               .changes = Part::ffn,
               .excludes = {{{Switch::layout, kNotContiguous}}},
               .gives_way_to = Slot::linear,
               .gives_way_because = kOneWeight},
    Descriptor{.option = Switch::fused_swiglu,
               .name = "fused_swiglu",
               .description = "silu(gate) * up in one pass",
               .changes = Part::ffn,
               .needs_own_kernel = true,
               .gives_way_to = Slot::swiglu},
    Descriptor{.option = Switch::sdpa,
               .name = "sdpa",
               .description = "the library's scaled_dot_product_attention",
               .changes = Part::attention,
               .excludes = {{{Switch::fused_attention, "both replace the attention core"}}},
               .refuse = refuse_sdpa,
               .gives_way_to = Slot::causal_attention},
    Descriptor{.option = Switch::fused_attention,
               .name = "fused_attention",
               .description = "causal attention in tiles, no score matrix",
               .changes = Part::attention,
               .needs_own_kernel = true,
               .refuse = refuse_on_gpu,
               .gives_way_to = Slot::causal_attention},
    Descriptor{.option = Switch::fused_norm,
               .name = "fused_norm",
               .description = "RMSNorm and the residual sum before it",
               .changes = Part::norm,
               .needs_own_kernel = true,
               .gives_way_to = Slot::rms_norm},
    Descriptor{.option = Switch::fused_rotary,
               .name = "fused_rotary",
               .description = "rotary embedding in one pass",
               .changes = Part::rotary,
               .needs_own_kernel = true,
               .gives_way_to = Slot::rotary},
    Descriptor{.option = Switch::fused_loss,
               .name = "fused_loss",
               .description = "LM head and loss by chunks of tokens",
               .changes = Part::loss,
               .needs_own_kernel = true,
               .gives_way_to = Slot::linear_cross_entropy},
    Descriptor{
        .option = Switch::foreach_adamw,
        .name = "foreach_adamw",
        .description = "AdamW by operators over lists",
        .changes = Part::update,
        .excludes = {{{Switch::fused_adamw, kOneUpdate}, {Switch::library_adamw, kOneUpdate}}},
        .gives_way_to = Slot::adamw_step_},
    Descriptor{.option = Switch::fused_adamw,
               .name = "fused_adamw",
               .description = "AdamW in one pass",
               .changes = Part::update,
               .needs_own_kernel = true,
               .excludes = {{{Switch::library_adamw, kOneUpdate}}},
               .gives_way_to = Slot::adamw_step_},
    Descriptor{.option = Switch::library_adamw,
               .name = "library_adamw",
               .description = "AdamW in one pass of the library's",
               .changes = Part::update,
               .gives_way_to = Slot::adamw_step_},
    Descriptor{.option = Switch::checkpoint,
               .name = "checkpoint",
               .description = "blocks computed again in the backward",
               .changes = Part::block},
    Descriptor{.option = Switch::tiled_gemm,
               .name = "tiled_gemm",
               .description = "GEMMs of linear layers in our own tiles (CPU)",
               .changes = Part::linear,
               .needs_own_kernel = true,
               .excludes = {{{Switch::wide_gemm, "both replace the library's GEMMs"}}},
               .refuse = refuse_on_gpu,
               .gives_way_to = Slot::linear},
    Descriptor{.option = Switch::wide_gemm,
               .name = "wide_gemm",
               .description = "narrow GEMMs computed in float32 (CPU)",
               .changes = Part::linear,
               .refuse = refuse_wide_gemm,
               .gives_way_to = Slot::linear},
    Descriptor{.option = Switch::graph,
               .name = "graph",
               .description = "the step captured once and replayed (GPU)",
               .changes = Part::step,
               .refuse = refuse_graph,
               .gives_way_to = Slot::adamw_step_,
               .gives_way_because =
                   "its count of steps is a number of the host, the same in every replay"},
    Descriptor{.option = Switch::layout,
               .name = "layout",
               .description = "weights stored [in, out]",
               .changes = Part::linear | Part::update,
               .gives_way_to = Slot::linear,
               .gives_way_because = kOneWeight},
};

constexpr bool are_in_order() {
  for (size_t i = 0; i < kSwitches.size(); ++i) {
    if (static_cast<size_t>(kSwitches[i].option) != i || kSwitches[i].name.empty()) return false;
  }
  return true;
}
static_assert(are_in_order(), "a descriptor stands where its switch stands in the enumeration");
static_assert(kSwitches.size() == static_cast<size_t>(Switch::layout) + 1,
              "the last switch of the enumeration has the last descriptor");

const Descriptor& descriptor(Switch option) {
  return kSwitches[static_cast<size_t>(option)];
}

// What a component of these parts computes with the operator.
Parts parts_of(Slot slot) {
  switch (slot) {
    case Slot::rms_norm:
      return Part::norm;
    case Slot::rms_norm_residual:
      return Part::residual_norm;
    case Slot::rotary:
      return Part::rotary;
    case Slot::causal_attention:
      return Part::attention;
    case Slot::swiglu:
      return Part::ffn;
    case Slot::linear:
      return Part::linear;
    case Slot::linear_cross_entropy:
      return Part::loss;
    case Slot::adamw_step_:
      return Part::update;
  }
  return {};
}

[[noreturn]] void refuse(std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto& candidate : kSwitches) names.push_back(candidate.name);
  throw std::invalid_argument(fmt::format(
      "variant '{}': must be baseline, fused, optimized, or switches joined by '+': {}; "
      "operators of a plug-in (NAMESPACE::SLOT) may stand beside them",
      text, fmt::join(names, ", ")));
}

}  // namespace

std::string_view to_string(Switch option) {
  return descriptor(option).name;
}

std::string_view describe(Switch option) {
  return descriptor(option).description;
}

std::span<const Switch> all_switches() {
  static constexpr auto all = [] {
    std::array<Switch, kSwitches.size()> options{};
    for (size_t i = 0; i < kSwitches.size(); ++i) options[i] = kSwitches[i].option;
    return options;
  }();
  return all;
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
  Variant variant;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    const auto* const found = std::find_if(kSwitches.begin(), kSwitches.end(),
                                           [&](const auto& known) { return known.name == name; });
    if (found != kSwitches.end()) {
      variant.bits_ |= bit(found->option);
    } else if (name == "fused") {
      variant.bits_ |= fused().bits_;
    } else if (name == "optimized") {
      variant.optimized_ = true;
    } else if (name.find("::") != std::string_view::npos) {
      const SlotOperator op = SlotOperator::find(name);
      if (const SlotOperator* other = variant.filling(op.slot()))
        throw std::invalid_argument(fmt::format("variant '{}': {} and {} both fill {}", text,
                                                other->name(), name, to_string(op.slot())));
      variant.operators_.push_back(op);
    } else {
      refuse(text);
    }
    begin = end + 1;
  }
  if (variant.optimized_ && variant.bits_ != 0) {
    throw std::invalid_argument(fmt::format(
        "variant '{}': beside optimized there can be no switch, because its own depend on the "
        "case; spell out the switches that a case's label gives for it",
        text));
  }
  std::ranges::sort(variant.operators_, {}, &SlotOperator::slot);
  const std::string contradiction = variant.contradiction();
  if (!contradiction.empty())
    throw std::invalid_argument(fmt::format("variant '{}': {}", text, contradiction));
  return variant;
}

bool Variant::changes(Parts parts) const {
  const auto options = switches();
  return std::any_of(options.begin(), options.end(),
                     [&](Switch option) { return descriptor(option).changes.overlap(parts); }) ||
         operators_change(parts);
}

bool Variant::same_in(Parts parts, const Variant& other) const {
  const auto changing = [&](const Variant& variant) {
    Variant kept;
    for (const Switch option : variant.switches())
      if (descriptor(option).changes.overlap(parts)) kept.bits_ |= bit(option);
    for (const SlotOperator& op : variant.operators_)
      if (parts_of(op.slot()).overlap(parts)) kept.operators_.push_back(op);
    return kept;
  };
  return changing(*this) == changing(other);
}

bool Variant::operators_change(Parts parts) const {
  return std::ranges::any_of(
      operators_, [&](const SlotOperator& op) { return parts_of(op.slot()).overlap(parts); });
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

Variant Variant::with(const SlotOperator& op) const {
  Variant changed = *this;
  for (const Switch option : switches())
    if (descriptor(option).gives_way_to == op.slot()) changed.bits_ &= ~bit(option);
  std::erase_if(changed.operators_, [&](const auto& other) { return other.slot() == op.slot(); });
  changed.operators_.push_back(op);
  std::ranges::sort(changed.operators_, {}, &SlotOperator::slot);
  return changed;
}

Variant Variant::without_operators() const {
  Variant changed = *this;
  changed.operators_.clear();
  return changed;
}

bool Variant::runs_on_meta() const {
  return std::ranges::all_of(operators_, &SlotOperator::has_meta_kernel);
}

const SlotOperator* Variant::filling(Slot slot) const {
  const auto found = std::ranges::find(operators_, slot, &SlotOperator::slot);
  return found == operators_.end() ? nullptr : &*found;
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
  std::vector<std::string> names;
  if (optimized_) {
    names.emplace_back("optimized");
  } else if (bits_ == fused().bits_) {
    names.emplace_back("fused");
  } else if (bits_ != 0 || operators_.empty()) {
    names.push_back(without_operators().switch_names());
  }
  for (const SlotOperator& op : operators_) names.push_back(op.name());
  return fmt::format("{}", fmt::join(names, "+"));
}

std::string Variant::switch_names() const {
  std::vector<std::string_view> names;
  for (const Switch option : switches()) names.push_back(to_string(option));
  for (const SlotOperator& op : operators_) names.push_back(op.name());
  if (names.empty()) return "baseline";
  return fmt::format("{}", fmt::join(names, "+"));
}

std::string Variant::contradiction() const {
  for (const Switch option : switches()) {
    for (const auto& [other, reason] : descriptor(option).excludes) {
      if (reason.empty() || !has(other)) continue;
      return fmt::format("{} and {} exclude each other: {}", to_string(option), to_string(other),
                         reason);
    }
    const Descriptor& own = descriptor(option);
    if (!own.gives_way_to) continue;
    if (const SlotOperator* op = filling(*own.gives_way_to))
      return fmt::format("{} and {} exclude each other: {}", own.name, op->name(),
                         own.gives_way_because);
  }
  return {};
}

std::string refuse_variant(const Variant& variant, Dtype dtype, const DeviceTraits& traits) {
  for (const Switch option : variant.switches()) {
    const Descriptor& found = descriptor(option);
    std::string reason;
    if (found.refuse) reason = found.refuse(variant, dtype, traits);
    if (reason.empty() && found.needs_own_kernel) reason = traits.no_own_kernels;
    if (!reason.empty()) return fmt::format("{}: {}", found.name, reason);
  }
  for (const SlotOperator& op : variant.operators()) {
    const std::string reason =
        op.refuse_device(traits.is_gpu ? c10::DeviceType::CUDA : c10::DeviceType::CPU);
    if (!reason.empty()) return reason;
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

bool DeviceTraits::has_library_attention(Dtype dtype) const {
  return std::ranges::count(attention_by_math, compute_type(dtype)) == 0;
}

bool can_capture([[maybe_unused]] c10::DeviceType device) {
#ifdef TINYLLAMA_HAS_GRAPHS
  return at::has_graph_impl(device);
#else
  return false;
#endif
}

DeviceTraits device_traits(c10::Device device) {
  DeviceTraits traits;
  traits.is_gpu = !device.is_cpu();
  if (traits.is_gpu) {
    traits.fast_bf16_gemm = traits.fast_f16_gemm = true;
    traits.no_own_kernels = kernels::why_no_gpu_kernels(device);
    traits.has_graphs = can_capture(device.type());
    for (const auto type :
         {c10::ScalarType::Float, c10::ScalarType::BFloat16, c10::ScalarType::Half}) {
      if (library_attention_is_math(device, type)) traits.attention_by_math.push_back(type);
    }
    return traits;
  }
#ifdef __x86_64__
  // Intel's AVX-512 instruction for bfloat16 has half the rate of float32's: it takes AMX there.
  const bool is_amd = __builtin_cpu_is("amd");
  traits.fast_bf16_gemm =
      is_amd ? __builtin_cpu_supports("avx512bf16") : __builtin_cpu_supports("amx-bf16");
  traits.fast_f16_gemm = __builtin_cpu_supports("avx512f") && has_avx512_fp16();
  traits.fast_tiled_gemm =
      is_amd && std::string_view(kernels::range_kernels().instruction_set).starts_with("x86-64-v4");
#endif
  return traits;
}

Variant optimized_variant(Dtype dtype, const DeviceTraits& traits) {
  // What a library has. No GPU has measured any rule for GPUs yet.
  if (!traits.no_own_kernels.empty()) {
    const Variant best({Switch::qkv, Switch::gate_up, Switch::foreach_adamw});
    return (traits.has_library_attention(dtype) ? best.with(Switch::sdpa) : best).named_optimized();
  }
  // Each is worth its place: results/ABLATION.md, "optimized without".
  Variant best({Switch::qkv, Switch::gate_up, Switch::fused_swiglu, Switch::fused_norm,
                Switch::fused_rotary, Switch::fused_loss, Switch::fused_adamw});
  // On two cores with AVX-512, forward and backward of tiny, batch 4 and 16: at S = 64, 128, 512 in
  // 0.88 to 0.95, 0.79 to 0.85, 0.49 to 0.50 of the time that GEMMs with a score matrix take,
  // and always in less than sdpa; in bf16 in 0.84 to 0.87, 0.73 to 0.74, 0.42.
  if (!traits.is_gpu) {
    best = best.with(Switch::fused_attention);
  } else if (traits.has_library_attention(dtype)) {
    best = best.with(Switch::sdpa);
  }
  // results/MEASURED.md, "On a processor with bf16 units".
  if (traits.fast_tiled_gemm) {
    best = best.with(Switch::tiled_gemm);
  } else if (!traits.has_fast_gemm(dtype)) {
    // The library computes bf16 and f16 without units far more slowly than float32.
    best = best.with(Switch::wide_gemm);
  }
  return best.named_optimized();
}

std::vector<DeviceTraits> processors_like(const DeviceTraits& traits) {
  if (traits.is_gpu) return {traits};
  std::vector<DeviceTraits> all;
  for (const bool fast_bf16 : {false, true}) {
    for (const bool fast_f16 : {false, true}) {
      for (const bool fast_tiled_gemm : {false, true}) {
        DeviceTraits processor = traits;
        processor.fast_bf16_gemm = fast_bf16;
        processor.fast_f16_gemm = fast_f16;
        processor.fast_tiled_gemm = fast_tiled_gemm;
        all.push_back(processor);
      }
    }
  }
  return all;
}

Variant resolved(const Variant& variant, Dtype dtype, const DeviceTraits& traits) {
  if (!variant.is_optimized()) return variant;
  Variant found = optimized_variant(dtype, traits);
  for (const SlotOperator& op : variant.operators()) found = found.with(op);
  return found;
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

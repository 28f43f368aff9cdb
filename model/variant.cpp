#include "model/variant.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace tinyllama {
namespace {

struct SwitchRow {
  Switch option;
  std::string_view name;
  std::string_view description;
};

constexpr std::array kSwitches = {
    SwitchRow{Switch::qkv, "qkv", "one projection for Q, K and V"},
    SwitchRow{Switch::gate_up, "gate_up", "one projection for gate and up"},
    SwitchRow{Switch::fused_swiglu, "fused_swiglu", "silu(gate) * up in one pass"},
    SwitchRow{Switch::sdpa, "sdpa", "the library's scaled_dot_product_attention"},
    SwitchRow{Switch::fused_attention, "fused_attention",
              "causal attention in tiles, no score matrix"},
    SwitchRow{Switch::fused_norm, "fused_norm", "RMSNorm and the residual sum before it"},
    SwitchRow{Switch::fused_rotary, "fused_rotary", "rotary embedding in one pass"},
    SwitchRow{Switch::fused_loss, "fused_loss", "LM head and loss by chunks of tokens"},
    SwitchRow{Switch::foreach_adamw, "foreach_adamw", "AdamW by operators over lists"},
    SwitchRow{Switch::fused_adamw, "fused_adamw", "AdamW in one pass"},
    SwitchRow{Switch::checkpoint, "checkpoint", "blocks computed again in the backward"},
    SwitchRow{Switch::onednn, "onednn", "float32 products through oneDNN (CPU)"},
    SwitchRow{Switch::wide_products, "wide_products", "narrow products computed in float32 (CPU)"},
    SwitchRow{Switch::graph, "graph", "the step captured once and replayed (GPU)"},
    SwitchRow{Switch::layout, "layout", "weights stored [in, out]"},
};

const SwitchRow& row(Switch option) {
  return kSwitches[static_cast<size_t>(option)];
}

struct Exclusion {
  Switch a;
  Switch b;
  std::string_view reason;
};

constexpr std::array kExclusions = {
    Exclusion{Switch::sdpa, Switch::fused_attention, "both replace the attention core"},
    Exclusion{Switch::foreach_adamw, Switch::fused_adamw, "both replace the update"},
    Exclusion{Switch::qkv, Switch::layout,
              "the parts of a merged weight stored [in, out] are not contiguous, so that each "
              "gradient would be copied"},
    Exclusion{Switch::gate_up, Switch::layout,
              "the parts of a merged weight stored [in, out] are not contiguous, so that each "
              "gradient would be copied"},
};

[[noreturn]] void refuse(std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto& candidate : kSwitches) names.push_back(candidate.name);
  throw std::invalid_argument(
      fmt::format("variant '{}': must be baseline, fused, optimized, or switches joined by '+': {}",
                  text, fmt::join(names, ", ")));
}

}  // namespace

std::string_view to_string(Switch option) {
  return row(option).name;
}

std::string_view describe(Switch option) {
  return row(option).description;
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
  if (text == "optimized") return unresolved_optimized();
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
  for (const auto& [a, b, reason] : kExclusions) {
    if (has(a) && has(b)) {
      return fmt::format("{} and {} exclude each other: {}", to_string(a), to_string(b), reason);
    }
  }
  return {};
}

}  // namespace tinyllama

#include "model/slowdown_plan.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <stdexcept>
#include <utility>

#include "model/slowdown.hpp"

namespace tinyllama {
namespace {

constexpr double kLargestFraction = 10.0;

constexpr std::array<std::pair<std::string_view, Part>, 7> kParts = {
    {{"embedding", Part::embedding},
     {"rms_norm", Part::rms_norm},
     {"rotary", Part::rotary},
     {"attention", Part::attention},
     {"ffn", Part::ffn},
     {"loss", Part::loss},
     {"optimizer", Part::optimizer}}};

[[noreturn]] void refuse(std::string_view text, const std::string& rule) {
  throw std::invalid_argument(fmt::format("{}={}: {}", kSlowdownVariable, text, rule));
}

Part parse_part(std::string_view name, std::string_view text) {
  std::string known;
  for (const auto& [known_name, part] : kParts) {
    if (name == known_name) return part;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", known_name);
  }
  refuse(text, fmt::format("'{}' is not a part; parts: {}", name, known));
}

double parse_fraction(std::string_view digits, std::string_view text) {
  double fraction = 0.0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, fraction);
  // Written so that "nan" is refused.
  if (error != std::errc() || stopped != end || !(fraction > 0 && fraction <= kLargestFraction)) {
    refuse(text,
           fmt::format("'{}' is not a number above 0 and at most {}", digits, kLargestFraction));
  }
  return fraction;
}

}  // namespace

SlowdownPlan parse_slowdown(std::string_view text) {
  SlowdownPlan plan;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t colon = item.find(':');
    if (colon == std::string_view::npos)
      refuse(text, fmt::format("'{}' is not of the form <part>:<fraction>", item));
    const Part part = parse_part(item.substr(0, colon), text);
    if (!plan.emplace(part, parse_fraction(item.substr(colon + 1), text)).second)
      refuse(text, fmt::format("'{}' is named twice", item.substr(0, colon)));
    if (comma != std::string_view::npos && comma + 1 == rest.size())
      refuse(text, "nothing follows the last comma");
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return plan;
}

}  // namespace tinyllama

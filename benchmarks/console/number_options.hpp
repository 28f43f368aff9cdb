// Checks of options that are numbers: what is refused is named with the rule.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string>

namespace tinyllama::console {

/// CLI11 lets integers beyond 64 bits saturate, and negative ones wrap where the target is
/// unsigned.
template <typename Integer>
CLI::Validator integer() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        Integer value{};
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc{} && rest == end) return {};
        return fmt::format("'{}' must be an integer from {} to {}", text,
                           std::numeric_limits<Integer>::min(),
                           std::numeric_limits<Integer>::max());
      },
      "");
}

/// A number with all of its text; CLI11's own words for others do not say what is allowed.
inline CLI::Validator number() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        char* rest = nullptr;
        std::strtod(text.c_str(), &rest);
        if (!text.empty() && *rest == '\0') return {};
        return fmt::format("'{}' must be a number", text);
      },
      "");
}

}  // namespace tinyllama::console

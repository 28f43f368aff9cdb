// A check of integer options that names the value and the rule.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
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

}  // namespace tinyllama::console

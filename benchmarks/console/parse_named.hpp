// Says of which option a text was that could not be read.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace tinyllama::console {

/// parse(text); its std::invalid_argument gets the option's name before its words.
template <typename Parse>
auto parse_named(const char* option, const std::string& text, Parse parse) {
  try {
    return parse(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(fmt::format("{}: {}", option, error.what()));
  }
}

}  // namespace tinyllama::console

// How users write lists of numbers, amounts of memory and patterns of names.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllama::console {

/// "8", "4,8,16", "64:512:*2" (first:last:factor), "128:1024:+128" (first:last:increment), and any
/// of these joined by commas. Order is kept, repetitions are dropped. Throws std::invalid_argument
/// naming the option, the text and the rule.
std::vector<int64_t> parse_numbers(std::string_view option, std::string_view text);

/// "a,b,c" -> the parts, none of them empty. Throws std::invalid_argument as above.
std::vector<std::string> parse_names(std::string_view option, std::string_view text);
/// The same of names that are all among `allowed`.
std::vector<std::string> parse_names(std::string_view option, std::string_view text,
                                     const std::vector<std::string>& allowed);

/// "8GiB", "512 MiB", "1.5GB", "1048576" -> bytes (GiB = 2^30, GB = 10^9). Throws
/// std::invalid_argument as above.
int64_t parse_memory_size(std::string_view option, std::string_view text);

/// A function that tells whether a name contains a match of this extended regular expression. It
/// takes time in proportion to the two lengths at most. Throws std::invalid_argument as above, also
/// for expressions whose reading would need more stack than there is.
std::function<bool(const std::string&)> parse_pattern(std::string_view option,
                                                      const std::string& text);

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

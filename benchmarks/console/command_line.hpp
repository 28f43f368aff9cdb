// What the programs do with a command line: reading it by CLI11, and checks that several options
// share.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace tinyllama::console {

/// Reads the arguments (without the program's name, in their order). Prints the help and returns
/// false for --help. Throws std::invalid_argument, with the known options for an unknown one.
/// `also_known`: options that the app does not hold, for that list.
bool parse_command_line(CLI::App& app, std::vector<std::string> arguments,
                        const std::string& also_known = "");

/// For transform(): decimal digits of an integer within these limits. CLI11 alone lets integers
/// beyond 64 bits saturate, negative ones wrap where the target is unsigned, and reads 010 as 8.
template <typename Integer>
CLI::Validator integer(Integer lowest = std::numeric_limits<Integer>::min(),
                       Integer highest = std::numeric_limits<Integer>::max()) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        Integer value{};
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        if (error != std::errc{} || rest != end || value < lowest || value > highest)
          return fmt::format("'{}' must be an integer from {} to {}", text, lowest, highest);
        text = fmt::format("{}", value);
        return {};
      },
      "");
}

/// The largest --threads: more than hosts have processors, and as many as OpenMP can still start.
inline constexpr int kMostThreads = 4096;

/// A number with all of its text; CLI11's own words for others do not say what is allowed.
CLI::Validator number();

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

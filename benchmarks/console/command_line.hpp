// What the programs do with a command line: reading it by CLI11, and checks that several options
// share.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "model/dtype.hpp"
#include "model/plugin.hpp"
#include "model/variant.hpp"

namespace tinyllama::console {

/// Reads the arguments (without the program's name, in their order). Prints the help and returns
/// false for --help, and likewise what was built for --version. Throws std::invalid_argument, with
/// the known options for an unknown one. `also_known`: options that the app does not hold, for that
/// list.
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

/// For check(): a number of which `allowed` is true. `rule`: what it must be, for the message.
/// CLI11's Range takes what is not a number for one.
CLI::Validator number(const std::string& rule, const std::function<bool(double)>& allowed);
CLI::Validator number_from(double lowest, double highest, const std::string& unit = {});

/// An option whose value is one of some words, each with its meaning.
template <typename Value>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Value& value,
                        const std::vector<std::pair<std::string, Value>>& choices,
                        const std::string& help) {
  const auto take = [&value, choices, name](const std::string& text) {
    const auto found = std::ranges::find(choices, text, &std::pair<std::string, Value>::first);
    if (found == choices.end()) {
      const auto words = choices | std::views::keys;
      throw CLI::ValidationError(
          name, fmt::format("'{}' must be one of {}", text, fmt::join(words, ", ")));
    }
    value = found->second;
  };
  CLI::Option* const option = app.add_option_function<std::string>(name, take, help);
  for (const auto& [word, meaning] : choices) {
    if (meaning == value) option->default_str(word);
  }
  return option;
}

CLI::Option* add_dtype(CLI::App& app, Dtype& dtype, const std::string& help);
/// --plugin, whose libraries are loaded as they are read.
CLI::Option* add_plugins(CLI::App& app, std::vector<Plugin>& plugins);
/// --variant, to be added after --plugin: options are read in that order.
CLI::Option* add_variant(CLI::App& app, Variant& variant, const std::vector<Plugin>& plugins);

}  // namespace tinyllama::console

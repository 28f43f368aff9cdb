// What the programs do with a command line: reading it, checks that several options share, and
// turning errors into exit statuses.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/console/exit.hpp"

namespace tinyllama::console {

/// Reads the arguments (without the program's name, in their order). Prints the help and returns
/// false for --help. Throws std::invalid_argument, with the known options for an unknown one.
/// `also_known`: options that the app does not hold, for that list.
bool parse_command_line(CLI::App& app, std::vector<std::string> arguments,
                        const std::string& also_known = "");

/// Runs a program: the one place where errors become exit codes. `program`: its name, in front of
/// what is said on standard error.
int run_program(const char* program, const std::function<ExitCode()>& run);

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

/// Tries to write beside `file`, so that a wrong path does not cost a run; what is there stays. An
/// empty name stands for no file. Throws std::invalid_argument that names the option and the cause.
void check_output_file(const char* option, const std::string& file);

}  // namespace tinyllama::console

#include "benchmarks/console/command_line.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>

#include "model/file_io.hpp"

namespace tinyllama::console {

bool parse_command_line(CLI::App& app, std::vector<std::string> arguments,
                        const std::string& also_known) {
  std::reverse(arguments.begin(), arguments.end());  // CLI11 reads a vector from its end
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ExtrasError& error) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) names.push_back(option->get_name());
    throw std::invalid_argument(
        fmt::format("{}; known options: {}{}", error.what(), fmt::join(names, ", "), also_known));
  } catch (const CLI::ParseError& error) {
    throw std::invalid_argument(error.what());
  }
  return true;
}

int run_program(const char* program, const std::function<ExitCode()>& run) {
  try {
    return static_cast<int>(run());
  } catch (const c10::Error& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, error.what());
  }
  return static_cast<int>(ExitCode::bad_input);
}

CLI::Validator number() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        char* rest = nullptr;
        std::strtod(text.c_str(), &rest);
        if (!text.empty() && *rest == '\0') return {};
        return fmt::format("'{}' must be a number", text);
      },
      "");
}

void check_output_file(const char* option, const std::string& file) {
  std::error_code unknown;
  if (file.empty() || std::filesystem::is_other(file, unknown)) return;
  if (std::filesystem::is_directory(file, unknown))
    throw std::invalid_argument(fmt::format("{}: {}: is a directory", option, file));
  auto trial = std::filesystem::path(file);
  trial += ".part";
  try {
    write_file_atomically(trial, "");
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(fmt::format("{}: {}", option, error.what()));
  }
  std::filesystem::remove(trial);
}

}  // namespace tinyllama::console

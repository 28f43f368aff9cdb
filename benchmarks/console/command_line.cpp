#include "benchmarks/console/command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

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

}  // namespace tinyllama::console

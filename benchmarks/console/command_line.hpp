// What both programs do with a command line once its options are declared.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/console/exit_code.hpp"

namespace tinyllama::console {

/// Reads the arguments (without the program's name, in their order). Prints the help and returns
/// false for --help. Throws std::invalid_argument, with the known options for an unknown one.
/// `also_known`: options that the app does not hold, for that list.
bool parse_command_line(CLI::App& app, std::vector<std::string> arguments,
                        const std::string& also_known = "");

/// Runs a program: the one place where errors become exit codes. `program`: its name, in front of
/// what is said on standard error.
int run_program(const char* program, const std::function<ExitCode()>& run);

}  // namespace tinyllama::console

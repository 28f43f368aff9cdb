// Files that a program will write once it has measured.
#pragma once

#include <string>

namespace tinyllama::console {

/// Tries to write beside `file`, so that a wrong path does not cost a run; what is there stays. An
/// empty name stands for no file. Throws std::invalid_argument that names the option and the cause.
void check_output_file(const char* option, const std::string& file);

}  // namespace tinyllama::console

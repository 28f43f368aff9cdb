#include "benchmarks/console/output_file.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <stdexcept>

#include "model/file_io.hpp"

namespace tinyllama::console {

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

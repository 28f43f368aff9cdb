#include "benchmarks/harness/result_document.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace tinyllama::harness {

std::string ResultDocument::text() const {
  Json root;
  root["context"] = context;
  root["benchmarks"] = Json::array();
  for (const auto& result : results) {
    for (const auto& entry : result.entries) root["benchmarks"].push_back(entry);
  }
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_file_atomically(const std::filesystem::path& file, const std::string& text) {
  std::error_code unknown;
  const auto status = std::filesystem::status(file, unknown);
  // A pipe or a device (/dev/stdout) must not be replaced by a file of its name, nor a link by what
  // it points to.
  const bool in_place =
      std::filesystem::exists(status) &&
      (!std::filesystem::is_regular_file(status) || std::filesystem::is_symlink(file, unknown));
  auto temporary = file;
  if (!in_place) temporary += ".part";
  errno = 0;
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  std::error_code renamed;
  if (out && !in_place) std::filesystem::rename(temporary, file, renamed);
  if (!out || renamed) {
    const std::string reason = renamed ? renamed.message() : std::strerror(errno);
    std::error_code ignored;
    if (!in_place) std::filesystem::remove(temporary, ignored);
    throw std::runtime_error(fmt::format("{}: cannot be written: {}", file.string(), reason));
  }
}

}  // namespace tinyllama::harness

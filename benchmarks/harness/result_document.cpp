#include "benchmarks/harness/result_document.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "model/file_io.hpp"

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
  if (!in_place) {
    ReplacementFile replacement(file);
    replacement.write(text.data(), std::ssize(text));
    return replacement.commit();
  }
  errno = 0;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) {
    throw std::runtime_error(
        fmt::format("{}: cannot be written: {}", file.string(), std::strerror(errno)));
  }
}

}  // namespace tinyllama::harness

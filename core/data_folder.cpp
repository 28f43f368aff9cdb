#include "core/data_folder.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

#include "core/strict_json.hpp"
#include "core/version.hpp"

namespace tinyllama {
namespace {

constexpr const char* kVariable = "TINY_LLAMA_DATA_DIR";

std::filesystem::path beside_program(std::error_code& error) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path() / "share" / "tiny_llama";
}

}  // namespace

std::string typed(const std::string& command) {
  std::error_code error;
  const bool is_checkout = std::filesystem::exists(beside_program(error) / "CMakeLists.txt", error);
  return (is_checkout ? "scripts/" : "tiny-llama ") + command;
}

std::filesystem::path data_folder() {
  const char* const given = std::getenv(kVariable);
  const bool is_given = given != nullptr && *given != '\0';
  std::error_code error;
  const std::filesystem::path folder = is_given ? given : beside_program(error);
  if (error)
    throw std::invalid_argument(
        fmt::format("/proc/self/exe: {}, so that the data of this program are not found; set {} to "
                    "<prefix>/share/tiny_llama",
                    error.message(), kVariable));
  const std::string named =
      printable(is_given ? fmt::format("{}={}", kVariable, given) : folder.string());
  std::string version;
  if (!(std::ifstream(folder / "VERSION") >> version))
    throw std::invalid_argument(fmt::format(
        "{}: is no data folder of this suite: it has no file VERSION; {}", named,
        is_given
            ? "name <prefix>/share/tiny_llama or a checkout, or unset it"
            : fmt::format("install again, or set {} to <prefix>/share/tiny_llama or a checkout",
                          kVariable)));
  if (version != project_version())
    throw std::invalid_argument(
        fmt::format("{}: holds the data of version {}, this program is {}; {}", named,
                    printable(version), project_version(),
                    is_given ? "name that of the same version, or unset it" : "install again"));
  return folder;
}

}  // namespace tinyllama

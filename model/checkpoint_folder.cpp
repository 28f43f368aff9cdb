#include "model/checkpoint_folder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/file_io.hpp"
#include "core/strict_json.hpp"

namespace tinyllama {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what) {
  throw std::invalid_argument(fmt::format("{}: {}", file.string(), what));
}

}  // namespace

// The cache keeps files in snapshots/HASH, and the hash of what was asked for in refs/main.
std::filesystem::path folder_of_files(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  constexpr int64_t longest_hash = 100;
  const fs::path snapshots = folder / "snapshots";
  std::error_code unknown;
  if (fs::exists(folder / kConfigFile, unknown) || !fs::is_directory(snapshots, unknown))
    return folder;
  if (fs::exists(folder / "refs/main", unknown)) {
    const std::string hash = read_text(folder / "refs/main", longest_hash);
    const fs::path chosen = snapshots / hash.substr(0, hash.find_last_not_of(" \n\r") + 1);
    if (fs::is_directory(chosen, unknown)) return chosen;
  }
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(snapshots))
    found.push_back(entry.path().string());
  if (found.size() == 1) return found.front();
  std::ranges::sort(found);
  fail(snapshots, fmt::format("holds {} snapshots and refs/main names none of them: name one{}",
                              found.size(), found.empty() ? "" : ", such as " + found.front()));
}

bool has_entry(const std::filesystem::path& folder, const char* name) {
  std::error_code unknown;
  return std::filesystem::exists(std::filesystem::symlink_status(folder / name, unknown));
}

std::string what_is_there(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  constexpr size_t most = 4;
  std::error_code unknown;
  if (!fs::exists(folder, unknown)) return "there is no such folder";
  if (!fs::is_directory(folder, unknown)) return "is a file";
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder, unknown))
    names.push_back(entry.path().filename().string() + (entry.is_directory(unknown) ? "/" : ""));
  if (names.empty()) return unknown ? unknown.message() : "is empty";
  std::ranges::sort(names);
  const size_t more = names.size() - std::min(names.size(), most);
  names.resize(names.size() - more);
  for (std::string& name : names) name = printable(name);
  return fmt::format("holds {}{}", fmt::join(names, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

ConfigFile open_config(const std::filesystem::path& place) {
  std::error_code unknown;
  std::filesystem::path file = place;
  if (std::filesystem::is_directory(place, unknown)) {
    const std::filesystem::path folder = folder_of_files(place);
    file = folder / kConfigFile;
    if (!has_entry(folder, kConfigFile)) {
      fail(folder, fmt::format("{}: name a {}, or a folder with one, such as save_pretrained() "
                               "writes or a snapshot folder of Hugging Face's cache",
                               what_is_there(folder), kConfigFile));
    }
  }
  std::string text = read_text(file, kMostConfigBytes);
  const ModelConfig config = parse_checkpoint_config(file, text);
  return {std::move(file), std::move(text), config};
}

}  // namespace tinyllama

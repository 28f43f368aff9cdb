// Where a model that others published lies on the disk: a folder with config.json, or one of
// Hugging Face's cache.
#pragma once

#include <filesystem>
#include <string>

#include "model/checkpoint_config.hpp"

namespace tinyllama {

inline constexpr const char* kConfigFile = "config.json";

/// The folder itself, or where it is a model's in Hugging Face's cache (models--OWNER--NAME) the
/// snapshot in it that refs/main names, or the only one. Throws std::invalid_argument where there
/// are several and none is named.
std::filesystem::path folder_of_files(const std::filesystem::path& folder);

/// Whether the folder has an entry of that name; a link whose file is missing counts: who reads it
/// says so.
bool has_entry(const std::filesystem::path& folder, const char* name);

/// What there is in the place of a model's folder, in words: "is empty", "holds a, b and 3 more".
std::string what_is_there(const std::filesystem::path& folder);

/// A model's config.json, read once.
struct ConfigFile {
  std::filesystem::path path;
  std::string text;
  ModelConfig config;
};
/// `place`: a config.json, by whatever name, or a folder with one as folder_of_files() takes it;
/// nothing else in the folder is opened. Throws std::invalid_argument that names the file, and what
/// parse_checkpoint_config() throws.
ConfigFile open_config(const std::filesystem::path& place);

}  // namespace tinyllama

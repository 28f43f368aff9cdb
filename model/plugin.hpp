// A user's library of operators, loaded as torch.ops.load_library does.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tinyllama {

struct Plugin {
  std::string file_name;  ///< without its folder
  std::string sha256;     ///< of the file
  /// Operators that the library registered and that are named after a slot, sorted.
  std::vector<std::string> operators;
};

/// Loads the library into this process, where it stays, and runs what its constructors do. Throws
/// std::invalid_argument that names the file and the reason where it is no library, cannot be
/// loaded, or registers no operator named after a slot.
Plugin load_plugin(const std::filesystem::path& file);

/// The name of a set in a variant, "plugin": the operators of all plug-ins. Returns the text with
/// their names in its place. Throws std::invalid_argument where there is no plug-in.
std::string with_operators_of(std::span<const Plugin> plugins, const std::string& variant);

}  // namespace tinyllama

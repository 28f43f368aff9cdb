// What was built: the project's version, the commit and the build type.
#pragma once

#include <string>

namespace tinyllama {

/// Of the file VERSION, e.g. "1.0.0".
std::string project_version();

struct SourceVersion {
  std::string commit;  ///< of the checkout this program was built from, "unknown" without git
  bool dirty = false;  ///< tracked files differ from that commit
};
/// The version of the checkout when this program was built.
SourceVersion source_version();

/// CMake's, e.g. "Release".
std::string build_type();

}  // namespace tinyllama

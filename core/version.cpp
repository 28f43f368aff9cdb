#include "core/version.hpp"

#include "source_version_stamp.hpp"

namespace tinyllama {

std::string project_version() {
  return TINY_LLAMA_VERSION;
}

SourceVersion source_version() {
  return {TINY_LLAMA_COMMIT, TINY_LLAMA_DIRTY};
}

std::string build_type() {
  return TINY_LLAMA_BUILD_TYPE;
}

}  // namespace tinyllama

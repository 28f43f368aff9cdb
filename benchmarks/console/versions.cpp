#include "benchmarks/console/versions.hpp"

#include <caffe2/core/common.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <stdexcept>

#include "core/version.hpp"

namespace tinyllama::console {
namespace {

// A local part, as of 2.13.0+cpu, is not in libtorch's own description.
std::string_view release_of(std::string_view version) {
  return version.substr(0, version.find('+'));
}

}  // namespace

std::string version_text(const std::string& program) {
  const SourceVersion source = source_version();
  return fmt::format("{} {}\ncommit {}{}\nlibtorch {}\nbuild {}", program, project_version(),
                     source.commit, source.dirty ? " with changes" : "", TORCH_VERSION,
                     build_type());
}

std::string loaded_libtorch() {
  // at::show_config() has it too, but asks a GPU for its libraries' versions.
  const auto& options = caffe2::GetBuildOptions();
  const auto found = options.find("TORCH_VERSION");
  return found == options.end() ? std::string() : found->second;
}

void refuse_other_libtorch(std::string_view built, std::string_view loaded) {
  if (loaded.empty() || release_of(built) == release_of(loaded)) return;
  throw std::runtime_error(fmt::format(
      "this program was built with libtorch {}, and the one that is loaded is {}; "
      "activate the environment that it was built with, or build it again with this one",
      built, loaded));
}

void refuse_other_libtorch() {
  refuse_other_libtorch(TORCH_VERSION, loaded_libtorch());
}

}  // namespace tinyllama::console

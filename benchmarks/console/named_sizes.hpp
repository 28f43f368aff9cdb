// What the names of --size and --sizes stand for, the same in all programs: problem sizes, and
// published models.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/config.hpp"
#include "model/published_models.hpp"

namespace tinyllama::console {

/// The files that names are looked up in, in this order.
struct SizeFiles {
  std::filesystem::path problem_sizes;
  std::filesystem::path models;
  /// Those of a folder like the project's fixtures/.
  static SizeFiles in(const std::filesystem::path& fixtures);
};

class NamedSizes {
 public:
  // Implicit, for those who have a list.
  NamedSizes(std::vector<ProblemSize> sizes) : sizes_(std::move(sizes)) {}
  /// Throws what load_problem_sizes() and PublishedModels do.
  explicit NamedSizes(const SizeFiles& files);

  void add(ProblemSize size) { sizes_.push_back(std::move(size)); }

  /// A published model's config is parsed here. Throws std::invalid_argument that begins with
  /// `option` and names what there is and the nearest of it, and what PublishedModels::read() does.
  ProblemSize find(const char* option, const std::string& name) const;

 private:
  std::vector<ProblemSize> sizes_;
  std::optional<PublishedModels> published_;
};

}  // namespace tinyllama::console

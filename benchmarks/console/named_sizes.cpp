#include "benchmarks/console/named_sizes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <stdexcept>

#include "core/strict_json.hpp"

namespace tinyllama::console {
namespace {

// Levenshtein's distance, capitals being none: Llama3.1-8B is one away from llama-3.1-8b.
size_t distance(const std::string& typed, const std::string& name) {
  std::vector<size_t> row(name.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < typed.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < name.size(); ++j) {
      const bool is_same = std::tolower(static_cast<unsigned char>(typed[i])) == name[j];
      const size_t replaced = diagonal + (is_same ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// Empty where every name is farther away than a third of what was typed.
std::string nearest(const std::string& typed, const std::vector<std::string>& names) {
  constexpr size_t longest = 100;
  if (typed.size() > longest || names.empty()) return {};
  const auto found = std::ranges::min_element(
      names, {}, [&](const std::string& name) { return distance(typed, name); });
  return distance(typed, *found) <= typed.size() / 3 ? *found : std::string();
}

}  // namespace

SizeFiles SizeFiles::in(const std::filesystem::path& fixtures) {
  return {fixtures / "problem_sizes.json", fixtures / "models.json"};
}

NamedSizes::NamedSizes(const SizeFiles& files)
    : sizes_(load_problem_sizes(files.problem_sizes)), published_(files.models) {}

ProblemSize NamedSizes::find(const char* option, const std::string& name) const {
  const auto size = std::ranges::find(sizes_, name, &ProblemSize::name);
  if (size != sizes_.end()) return *size;
  if (published_ && published_->contains(name)) return published_->read(name).size;
  std::vector<std::string> names;
  for (const ProblemSize& known : sizes_) names.push_back(known.name);
  std::string message =
      fmt::format("{} '{}': must be one of {}", option, printable(name), fmt::join(names, ", "));
  if (published_) {
    const std::vector<std::string> models = published_->names();
    message += fmt::format(", or of the published models {}", fmt::join(models, ", "));
    names.insert(names.end(), models.begin(), models.end());
  }
  if (name == "custom") {
    message += "; custom needs --hidden-dim or another of its options, or --config";
  } else if (const std::string meant = nearest(name, names); !meant.empty()) {
    message += fmt::format("; the nearest is {}", meant);
  }
  throw std::invalid_argument(message);
}

}  // namespace tinyllama::console

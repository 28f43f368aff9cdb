#include "benchmarks/console/size_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "model/config.hpp"

namespace tinyllama::console {

ChosenSize choose_size(const CLI::App& app, const std::string& name, const ModelDimensions& given,
                       const std::filesystem::path& problem_sizes) {
  const auto sizes = load_problem_sizes(problem_sizes);
  const auto found =
      std::find_if(sizes.begin(), sizes.end(), [&](const auto& size) { return size.name == name; });
  if (found == sizes.end()) {
    std::vector<std::string> names;
    for (const auto& size : sizes) names.push_back(size.name);
    throw std::invalid_argument(
        fmt::format("--size '{}': must be one of {}", name, fmt::join(names, ", ")));
  }
  ChosenSize chosen = {name, found->config.dimensions(), found->batch, found->seq};
  for (const auto& [option, dimension] : kSizeOptions) {
    if (app.count(option) > 0) chosen.dimensions.*dimension = given.*dimension;
  }
  if (chosen.dimensions != found->config.dimensions()) chosen.name = "custom";
  return chosen;
}

}  // namespace tinyllama::console

#include "benchmarks/harness/weights_option.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace tinyllama::harness {
namespace {

void refuse_contradictions(const Options& options, const ModelConfig& config) {
  for (const auto& name : options.axes.sizes) {
    if (name != "custom") {
      throw std::invalid_argument(fmt::format(
          "--sizes '{}': must be custom or left out with --weights {}, whose config.json gives the "
          "size (hidden_dim {}, n_layers {}, vocab_size {})",
          name, options.weights_folder, config.hidden_dim(), config.n_layers(),
          config.vocab_size()));
    }
  }
  for (const auto& [name, size] : options.given_sizes) {
    const int64_t given = *options.custom_size.*size;
    const int64_t stored = config.dimensions().*size;
    if (given != stored) {
      throw std::invalid_argument(
          fmt::format("{} {}: must be {} or left out with --weights {}, whose config.json says so",
                      name, given, stored, options.weights_folder));
    }
  }
}

}  // namespace

std::optional<Weights> open_weights(Options& options) {
  if (options.weights_folder.empty()) return std::nullopt;
  std::optional<Weights> weights;
  try {
    weights.emplace(options.weights_folder);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(fmt::format("--weights: {}", error.what()));
  }
  refuse_contradictions(options, weights->config());
  options.custom_size = weights->config().dimensions();
  options.axes.sizes = {"custom"};
  return weights;
}

}  // namespace tinyllama::harness

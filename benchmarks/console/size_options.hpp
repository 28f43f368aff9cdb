// The options that state a model's size, the same in all programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "model/config.hpp"

namespace CLI {
class App;
}

namespace tinyllama::console {

struct SizeOption {
  const char* name;
  int64_t ModelDimensions::*size;
};

inline constexpr SizeOption kSizeOptions[] = {
    {"--hidden-dim", &ModelDimensions::hidden_dim},
    {"--n-layers", &ModelDimensions::n_layers},
    {"--n-heads", &ModelDimensions::n_heads},
    {"--n-kv-heads", &ModelDimensions::n_kv_heads},
    {"--intermediate-dim", &ModelDimensions::intermediate_dim},
    {"--vocab-size", &ModelDimensions::vocab_size}};

/// A size of the file, changed as the user wants it.
struct ChosenSize {
  std::string name;  ///< "custom" where a dimension differs from the file's
  ModelDimensions dimensions;
  int64_t batch;  ///< samples in a step, the file's
  int64_t seq;    ///< tokens in a sample, the file's
};

/// What `--size name` means beside those of kSizeOptions that the command line has, whose values
/// are in `given`. Throws std::invalid_argument where the file has no such size, and what
/// load_problem_sizes throws.
ChosenSize choose_size(const CLI::App& app, const std::string& name, const ModelDimensions& given,
                       const std::filesystem::path& problem_sizes);

}  // namespace tinyllama::console

// The options that state a model's size, the same in all programs, and how results state it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "model/checkpoint_folder.hpp"
#include "model/config.hpp"

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

/// Of a size that neither a file of named sizes nor the user gives another.
inline constexpr int64_t kCustomBatch = 8;
inline constexpr int64_t kCustomSeq = 128;

/// Help of --config, after its name.
inline constexpr const char* kConfigHelp =
    "config.json of a published LLaMA model, or a folder with one (or of Hugging Face's cache): "
    "size `custom` with its dimensions and features, weights drawn from the seed";

/// What --config names. Throws std::invalid_argument that begins with the option and names the
/// file, the key, its value and the rule.
ConfigFile open_config_option(const std::string& place);

/// What published families of models have beside the dimensions of kSizeOptions, under the names of
/// results/schema.json; only what the size has.
nlohmann::ordered_json features_of(const ModelConfig& config);

}  // namespace tinyllama::console

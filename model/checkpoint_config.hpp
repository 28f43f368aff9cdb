// config.json of a folder of weights, as the transformers package writes it.
#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "model/config.hpp"

namespace tinyllama {

/// A config.json is a few kilobytes; a longer file is another one.
inline constexpr int64_t kMostConfigBytes = 1'000'000;

/// Reads a JSON file whose root is an object. Throws std::invalid_argument that names the file and
/// the cause where it cannot be read, is longer than `most_bytes`, is not JSON, nests deeper than
/// 32, or gives a key twice.
nlohmann::json read_json_object(const std::filesystem::path& file, int64_t most_bytes);

/// The sizes that a config.json of LlamaForCausalLM states, with that class's own defaults for what
/// may be left out. Throws std::invalid_argument that names the file, the key, its value and the
/// reason for a model that this one is not (another model_type, tied embeddings, biases, a scaled
/// rotary embedding, another activation, dropout, quantised weights), for a missing or ill-typed
/// key, and for sizes that break ModelConfig's rules.
ModelConfig read_checkpoint_config(const std::filesystem::path& file);

/// The text of a config.json for weights of `type` that LlamaForCausalLM.from_pretrained loads.
/// `original`: the text of the file that the weights were read with, whose further keys (token ids,
/// longest sequence, ...) are kept.
std::string checkpoint_config_text(const ModelConfig& config, c10::ScalarType type,
                                   const std::string& original = {});

}  // namespace tinyllama

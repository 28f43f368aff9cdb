// config.json, in which the transformers package states a model's shape: read and written.
#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <string>

#include "model/config.hpp"

namespace tinyllama {

/// A config.json is a few kilobytes; a longer file is another one.
inline constexpr int64_t kMostConfigBytes = 1'000'000;

/// The sizes that a config.json of LlamaForCausalLM states, with that class's own defaults for what
/// may be left out. Throws std::invalid_argument that names the file, the key, its value and the
/// reason for a model that this one is not (another model_type, tied embeddings, biases, a scaled
/// rotary embedding, another activation, dropout, quantised weights), for a missing or ill-typed
/// key, and for sizes that break ModelConfig's rules.
ModelConfig read_checkpoint_config(const std::filesystem::path& file);
/// The same of a text that was read already; `file` is for messages.
ModelConfig parse_checkpoint_config(const std::filesystem::path& file, const std::string& text);

/// A warning in words where sequences of `seq` tokens are longer than those that the text of a
/// config.json (Weights::config_text()) states as the model's longest; empty where they are not.
std::string longer_than_made_for(const std::string& config_text, int64_t seq);

/// The text of a config.json for weights of `type` that LlamaForCausalLM.from_pretrained loads.
/// `original`: the text of the file that the weights were read with, whose further keys (token ids,
/// longest sequence, ...) are kept.
std::string checkpoint_config_text(const ModelConfig& config, c10::ScalarType type,
                                   const std::string& original = {});

}  // namespace tinyllama

// config.json, in which the transformers package states a model's shape: read and written.
#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <string>

#include "model/config.hpp"

namespace tinyllama {

/// A config.json is a few kilobytes; a longer file is another one.
inline constexpr int64_t kMostConfigBytes = 1'000'000;

/// The dimensions and features that a config.json of model_type llama, mistral, qwen2 or qwen3
/// states, as that class of transformers 4.57 computes, with its own defaults for what is left out;
/// the spelling of transformers 5 too (rope_parameters, dtype). Throws std::invalid_argument that
/// names the file, the key, its value, the rule and what to do for another model_type, for keys
/// that change the computation to one that is not implemented (experts, latent attention,
/// soft-capping, other rotary embeddings, quantised weights, windows in some layers, ...), for
/// ill-typed values, and for what breaks ModelConfig's rules. Other keys are left alone.
ModelConfig read_checkpoint_config(const std::filesystem::path& file);
/// The same of a text that was read already; `file` is for messages.
ModelConfig parse_checkpoint_config(const std::filesystem::path& file, const std::string& text);

/// A warning in words where sequences of `seq` tokens are longer than those that the text of a
/// config.json (Weights::config_text()) states as the model's longest; empty where they are not.
std::string longer_than_made_for(const std::string& config_text, int64_t seq);

/// The text of a config.json for weights of `type` that transformers loads: of the class that has
/// the features, LlamaForCausalLM where there are none. `original`: the text of the file that the
/// weights were read with, whose keys are kept (model_type, token ids, longest sequence, ...).
/// Throws std::invalid_argument for features that no class has together, for a share of a model,
/// and where the original states another model.
std::string checkpoint_config_text(const ModelConfig& config, c10::ScalarType type,
                                   const std::string& original = {});

}  // namespace tinyllama

#include "benchmarks/console/size_options.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "benchmarks/console/option_grammar.hpp"

namespace tinyllama::console {
namespace {

using Json = nlohmann::ordered_json;

// By the names that config.json has for it.
Json describe(const RopeScaling& scaling) {
  if (scaling.type == RopeScaling::Type::linear)
    return {{"rope_type", "linear"}, {"factor", scaling.factor}};
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_positions}};
}

}  // namespace

ConfigFile open_config_option(const std::string& place) {
  if (place.empty()) throw std::invalid_argument("--config '': needs the name of a file or folder");
  return parse_named("--config", place, [](const std::string& text) { return open_config(text); });
}

Json features_of(const ModelConfig& config) {
  const ModelDimensions& d = config.dimensions();
  Json features = Json::object();
  if (d.own_head_dim) features["head_dim"] = *d.own_head_dim;
  const std::pair<const char*, bool> flags[] = {{"tied_embeddings", d.tied_embeddings},
                                                {"qkv_bias", d.qkv_bias},
                                                {"o_bias", d.o_bias},
                                                {"mlp_bias", d.mlp_bias},
                                                {"qk_norm", d.qk_norm}};
  for (const auto& [name, has_it] : flags)
    if (has_it) features[name] = true;
  if (d.sliding_window) features["sliding_window"] = *d.sliding_window;
  if (d.rope_scaling.type != RopeScaling::Type::none)
    features["rope_scaling"] = describe(d.rope_scaling);
  if (d.whole_vocab) features["whole_vocab"] = *d.whole_vocab;
  if (d.only_layers) features["only_layers"] = true;
  return features;
}

}  // namespace tinyllama::console

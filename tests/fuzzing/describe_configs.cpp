// describe_configs FILE...: a line of JSON for each config.json: the dimensions that it states, and
// the text that would be written for them; for tests/test_model_configs.py.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "benchmarks/console/exit.hpp"
#include "model/checkpoint_config.hpp"

namespace {

using nlohmann::json;

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

json describe(const tinyllama::ModelConfig& config) {
  const tinyllama::ModelDimensions& d = config.dimensions();
  const tinyllama::RopeScaling& scaling = d.rope_scaling;
  return {{"vocab_size", d.vocab_size},
          {"hidden_dim", d.hidden_dim},
          {"n_layers", d.n_layers},
          {"n_heads", d.n_heads},
          {"n_kv_heads", d.n_kv_heads},
          {"intermediate_dim", d.intermediate_dim},
          {"norm_eps", d.norm_eps},
          {"rope_theta", d.rope_theta},
          {"padding_token", or_null(d.padding_token)},
          {"own_head_dim", or_null(d.own_head_dim)},
          {"tied_embeddings", d.tied_embeddings},
          {"qkv_bias", d.qkv_bias},
          {"o_bias", d.o_bias},
          {"mlp_bias", d.mlp_bias},
          {"qk_norm", d.qk_norm},
          {"sliding_window", or_null(d.sliding_window)},
          {"rope_scaling",
           {{"type", static_cast<int>(scaling.type)},
            {"factor", scaling.factor},
            {"low_freq_factor", scaling.low_freq_factor},
            {"high_freq_factor", scaling.high_freq_factor},
            {"original_positions", scaling.original_positions}}}};
}

}  // namespace

int main(int argc, char** argv) {
  return tinyllama::console::run_program("describe_configs", [&] {
    if (argc < 2) throw std::invalid_argument("usage: describe_configs FILE...");
    for (int i = 1; i < argc; ++i) {
      const auto config = tinyllama::read_checkpoint_config(argv[i]);
      json described = describe(config);
      described["written"] = tinyllama::checkpoint_config_text(config, c10::ScalarType::Float);
      std::cout << described.dump() << "\n";
    }
    return tinyllama::console::ExitCode::ok;
  });
}

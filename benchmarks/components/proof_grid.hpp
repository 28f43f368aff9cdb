// The configurations at which FLOPs and memory are proved, with what torch.utils.flop_counter
// counts for LlamaForCausalLM at each (fixtures/golden/flops.json).
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/config.hpp"
#include "model/variant.hpp"

namespace tinyllama::components::testing {

struct GridPoint {
  std::string name;
  ModelConfig config;
  int64_t batch;
  int64_t seq;
  nlohmann::json flops;  ///< component -> pass -> FLOPs

  /// Small enough to be run by a test, and not only counted.
  bool is_small() const { return name.starts_with("grid_"); }

  /// What the oracle counts for a pass; nothing where it does not count the component. A loss adds
  /// no GEMMs to the model's forward.
  std::optional<int64_t> counted(const std::string& component, Pass pass) const {
    if (!flops.contains(component)) return std::nullopt;
    const auto& passes = flops.at(component);
    if (pass == Pass::forward_loss) pass = Pass::forward;
    if (pass == Pass::forward_backward) {
      return passes.at("forward").get<int64_t>() + passes.at("backward").get<int64_t>();
    }
    return passes.at(std::string(to_string(pass))).get<int64_t>();
  }
};

inline std::vector<GridPoint> proof_grid() {
  std::ifstream file(TINY_LLAMA_SOURCE_DIR "/fixtures/golden/flops.json");
  const auto document = nlohmann::json::parse(file);
  std::vector<GridPoint> grid;
  for (const auto& entry : document.at("configurations")) {
    const auto size = [&](const char* key) { return entry.at(key).get<int64_t>(); };
    grid.push_back({entry.at("name").get<std::string>(),
                    ModelConfig({.vocab_size = size("vocab_size"),
                                 .hidden_dim = size("hidden_dim"),
                                 .n_layers = size("n_layers"),
                                 .n_heads = size("n_heads"),
                                 .n_kv_heads = size("n_kv_heads"),
                                 .intermediate_dim = size("intermediate_dim")}),
                    size("batch"), size("seq"), entry.at("flops")});
  }
  return grid;
}

/// Variants to prove at the point of this index in the grid: the baseline at each, the others at
/// one in `stride`, for they change operators and not sizes.
inline std::vector<Variant> variants_at(size_t index, Dtype dtype, size_t stride) {
  if (index % stride != 0) return {Variant()};
  return runnable_variants(dtype, cpu_traits());
}

}  // namespace tinyllama::components::testing

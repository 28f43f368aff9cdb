// The options that state a model's size, the same in all programs.
#pragma once

#include <cstdint>

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

}  // namespace tinyllama::console

// What the parts of a step add up to. The components folder fills it in, since the harness knows no
// component by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/cost.hpp"

namespace tinyllama::harness {

struct ClosurePart {
  std::string component;
  Pass pass;
  int64_t count;
};

/// What the components' parts add up to, and the component that they are compared with.
struct Closure {
  std::string whole;
  std::vector<ClosurePart> (*parts)(const ModelConfig&);
};

}  // namespace tinyllama::harness

// c10d::Reducer as each libtorch makes it.
#pragma once

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace tinyllama::distributed {

/// With these arguments of c10d::Reducer's constructor. What it takes differs: since libtorch 2.10
/// a list of bucket sizes as well, which is left empty.
template <typename... Arguments>
std::unique_ptr<c10d::Reducer> make_reducer(Arguments... arguments) {
  if constexpr (std::is_constructible_v<c10d::Reducer, Arguments...>) {
    return std::make_unique<c10d::Reducer>(std::move(arguments)...);
  } else {
    return std::make_unique<c10d::Reducer>(std::move(arguments)..., std::vector<int64_t>());
  }
}

}  // namespace tinyllama::distributed

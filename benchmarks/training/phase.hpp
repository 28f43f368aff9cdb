// The parts of a training step, as the profiling summary's breakdown has them.
#pragma once

#include <array>
#include <string_view>

namespace tinyllama::training {

enum class Phase { data_loading, forward, backward, optimizer, evaluation, other };

inline constexpr std::array kPhases = {Phase::data_loading, Phase::forward,    Phase::backward,
                                       Phase::optimizer,    Phase::evaluation, Phase::other};

constexpr std::string_view to_string(Phase phase) {
  constexpr std::array<std::string_view, kPhases.size()> names = {
      "data_loading", "forward", "backward", "optimizer", "evaluation", "other"};
  return names[static_cast<size_t>(phase)];
}

}  // namespace tinyllama::training

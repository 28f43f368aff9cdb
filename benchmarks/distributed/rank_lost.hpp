// What ends a run that has started: some rank does not take part any more.
#pragma once

#include <stdexcept>

namespace tinyllama::distributed {

/// The message names this rank, what it was doing, and the ranks that do not answer.
class RankLostError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tinyllama::distributed

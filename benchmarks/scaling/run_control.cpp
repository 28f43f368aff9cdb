#include "benchmarks/scaling/run_control.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "benchmarks/console/exit.hpp"

namespace tinyllama::scaling {

bool any_rank_interrupted(distributed::ProcessGroup& group) {
  return group.largest_number(console::interrupted() ? 1 : 0) > 0;
}

void say(const distributed::ProcessGroup& group, const std::string& text) {
  if (group.is_first()) fmt::print(stderr, "{}\n", text);
}

}  // namespace tinyllama::scaling

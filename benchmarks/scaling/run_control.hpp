// What the ranks of a run do together around the measuring: stop, and tell how far they are.
#pragma once

#include <string>

#include "benchmarks/distributed/process_group.hpp"

namespace tinyllama::scaling {

/// Whether a signal asked any rank to stop. All ranks have to call it, and get the same answer.
bool any_rank_interrupted(distributed::ProcessGroup& group);

/// A line on rank 0's standard error.
void say(const distributed::ProcessGroup& group, const std::string& text);

}  // namespace tinyllama::scaling

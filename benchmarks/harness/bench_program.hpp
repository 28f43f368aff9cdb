// A benchmark program of some components: options -> plan -> run. What main() calls, of this
// project and of others that add components of their own.
#pragma once

#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/sum_of_parts.hpp"

namespace tinyllama::harness {

/// The exit status of a run of `program`, by which name it speaks. `step`: what the sum of parts is
/// made of.
int bench_program(const char* program, int argc, char** argv,
                  const std::vector<Component>& components, const PartsOfStep& step);

}  // namespace tinyllama::harness

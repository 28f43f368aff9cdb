// The list that main reads: every component of the suite, one file each in this folder.
#pragma once

#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/sum_of_parts.hpp"

namespace tinyllama::components {

harness::Component embedding();
harness::Component rms_norm();
harness::Component rotary();
harness::Component attention();
harness::Component feed_forward();
harness::Component block();
harness::Component stage();
harness::Component loss();
harness::Component model();
harness::Component optimizer();
harness::Component full_step();

/// In the order of a step; adding a component means its file and its line here.
std::vector<harness::Component> all();

/// embedding + L x block + final norm + loss + optimizer against full_step.
harness::PartsOfStep parts_of_step();

}  // namespace tinyllama::components

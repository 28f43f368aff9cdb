// Compares the sum of the times of a step's parts with the time of the step. The components folder
// says what the parts are, because the harness knows no component by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/interleaved.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::harness {

struct PartOfStep {
  std::string component;
  Pass pass;
  int64_t count;
};

struct PartsOfStep {
  std::string whole;  ///< the component that they are compared with
  std::vector<PartOfStep> (*parts)(const ModelConfig&);
};

/// The sum of the parts in percent of the whole, two lines for each point where all of them were
/// measured; where the whole was measured but no point is complete, says what is missing. Rows of a
/// run are minutes apart, in which other load may have come or gone: with `measure` all are timed
/// again, interleaved, and the line has that figure beside the one of the rows.
std::string sum_of_parts_lines(const std::vector<const MeasuredCase*>& measured,
                               const PartsOfStep& step, const MeasureInterleaved& measure = {});

}  // namespace tinyllama::harness

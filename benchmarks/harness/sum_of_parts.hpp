// What the parts of a step add up to, against the step. The components folder says what the parts
// are, since the harness knows no component by name.
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
/// measured; where the whole was measured but no point is complete, says what it needs. Rows of a
/// run are minutes apart, in which other load may have come or gone: with `measure` the line is of
/// what it returns, and says beside what the rows give.
std::string sum_of_parts_lines(const std::vector<MeasuredCase>& measured, const PartsOfStep& step,
                               const MeasureInterleaved& measure = {});

}  // namespace tinyllama::harness

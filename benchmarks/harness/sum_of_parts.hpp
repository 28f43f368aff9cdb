// What the parts of a step add up to, against the step. The components folder says what the parts
// are, since the harness knows no component by name.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/runner.hpp"

namespace tinyllama::harness {

struct MeasuredCase;

struct PartOfStep {
  std::string component;
  Pass pass;
  int64_t count;
};

struct PartsOfStep {
  std::string whole;  ///< the component that they are compared with
  std::vector<PartOfStep> (*parts)(const ModelConfig&);
};

/// Seconds of an iteration of each case, measured now and interleaved; nothing where that was not
/// possible.
using MeasureInterleaved = std::function<std::vector<double>(const std::vector<const Case*>&)>;

/// The sum of the parts in percent of the whole, two lines for each point where all of them were
/// measured; where the whole was measured but no point is complete, says what it needs. Rows of a
/// run are minutes apart, in which other load may have come or gone: with `measure` the line is of
/// what it returns, and says beside what the rows give.
std::string sum_of_parts_lines(const std::vector<MeasuredCase>& measured, const PartsOfStep& step,
                               const MeasureInterleaved& measure = {});

/// Seconds of an iteration of each case: all are built and warmed up, then timed in short slices,
/// one of each a round; medians over the rounds, five or as many as `settings.max_seconds_per_case`
/// has time for. Nothing where they do not fit into memory together, a round would take longer than
/// that, or one fails. Proofs are the caller's.
std::vector<double> time_cases_interleaved(const instruments::Device& device,
                                           const std::vector<const Case*>& cases,
                                           const RunSettings& settings);

}  // namespace tinyllama::harness

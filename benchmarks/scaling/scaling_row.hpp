// One row of a scaling result: its repetitions in Google Benchmark's format.
#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "benchmarks/harness/counters.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::scaling {

/// One round's measurement of a row.
struct Repetition {
  double seconds = 0;      ///< of one iteration, on the slowest rank
  double cpu_seconds = 0;  ///< of one iteration, all threads of rank 0's process
  int64_t iterations = 1;
  harness::Counters counters;
};

/// The repetitions and, where there are two or more, their mean, median, standard deviation and
/// coefficient of variation, counters included.
harness::CaseResult to_case_result(const std::string& name, benchmark::TimeUnit unit,
                                   const std::vector<Repetition>& repetitions);

/// Of an even number of values the mean of the middle two. Throws std::invalid_argument for none.
double median(std::vector<double> values);

}  // namespace tinyllama::scaling

// What a run of the scaling program has measured so far, in Google Benchmark's format, and the file
// it goes to.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/distributed/rounds.hpp"
#include "benchmarks/distributed/scaling_options.hpp"
#include "benchmarks/harness/rows.hpp"

namespace tinyllama::distributed {

/// One round's measurement of a row: seconds of an iteration on the slowest rank, processor seconds
/// of all threads of rank 0's process.
using harness::Repetition;

/// A row while it is measured.
struct RowRecord {
  std::string name = {};
  std::string unit = "ms";
  std::vector<Repetition> repetitions = {};  ///< a round
  std::vector<RoundSamples> samples = {};    ///< a round: what each rank measured
};

/// The repetitions and, where there are two or more, their mean, median, standard deviation and
/// coefficient of variation, counters included.
harness::CaseResult to_case_result(const RowRecord& record);

class ScalingResults {
 public:
  /// All ranks have to make one: they tell rank 0 where they are. `bucket_bytes` of the gradients;
  /// empty where no step is measured.
  ScalingResults(const ScalingOptions& options, ProcessGroup& group,
                 const std::vector<int64_t>& bucket_bytes);

  /// Takes the row as it is now, unless it has no repetition yet. Does nothing on other ranks than
  /// the first.
  void keep(const RowRecord& record);
  /// Writes the file anew, on rank 0: nothing that was measured is lost with a process, whatever
  /// ends it. Throws std::runtime_error where it cannot be written.
  void write() const;
  /// For the end: the document (--benchmark_format=json) or a table of medians.
  std::string text() const;
  bool is_empty() const { return rows_.empty(); }

 private:
  struct Row {
    harness::CaseResult result;
    std::vector<RoundSamples> samples;
  };
  harness::Json document() const;

  const ScalingOptions& options_;
  bool is_first_;
  harness::Json context_;
  std::vector<Row> rows_;
};

}  // namespace tinyllama::distributed

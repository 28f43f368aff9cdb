// What a run of the scaling program has measured so far, and the file it goes to.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/scaling/rank_samples.hpp"
#include "benchmarks/scaling/scaling_options.hpp"

namespace tinyllama::scaling {

/// A row and, by round, what each rank measured for it.
struct MeasuredRow {
  harness::CaseResult row;
  std::vector<RoundSamples> samples;
};

/// Takes what there is of some rows, in place of what it has of them.
using KeepRows = std::function<void(std::vector<MeasuredRow>)>;

class ScalingResults {
 public:
  /// All ranks have to make one: they tell rank 0 where they are. `bucket_bytes` of the gradients;
  /// empty where no step is measured.
  ScalingResults(const ScalingOptions& options, distributed::ProcessGroup& group,
                 const std::vector<int64_t>& bucket_bytes);

  /// Takes these rows in place of those of the same names, and writes the file anew: nothing that
  /// was measured is lost with a process, whatever ends it. Does nothing on other ranks than the
  /// first. Throws std::runtime_error where it cannot be written.
  void keep(std::vector<MeasuredRow> rows);
  /// For the end: the document (--benchmark_format=json) or a table of medians.
  std::string text() const;
  bool is_empty() const { return rows_.empty(); }

 private:
  harness::Json document() const;

  const ScalingOptions& options_;
  bool is_first_;
  harness::Json context_;
  std::vector<MeasuredRow> rows_;
};

}  // namespace tinyllama::scaling

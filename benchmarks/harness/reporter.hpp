// Google Benchmark's reporter for our runs: turns each finished case into JSON objects and hands
// them on.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <string>

#include "benchmarks/harness/result_document.hpp"

namespace tinyllama::harness {

class CaseReporter final : public benchmark::BenchmarkReporter {
 public:
  /// `on_case` gets every finished case once, with all its repetitions and aggregates, before the
  /// next case starts.
  explicit CaseReporter(std::function<void(CaseResult)> on_case) : on_case_(std::move(on_case)) {}

  bool ReportContext(const Context& context) override;
  /// Google Benchmark hands a case over in up to two calls: its repetitions, then their aggregates.
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override { hand_on(); }

  /// Google Benchmark's own context: date, host, caches, library version.
  static Json benchmark_context();

 private:
  void hand_on();
  std::function<void(CaseResult)> on_case_;
  CaseResult pending_;
};

}  // namespace tinyllama::harness

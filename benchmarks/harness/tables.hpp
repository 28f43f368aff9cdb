// What people and schedulers read when a run ends: tables of what varies or, after the default
// grid, a digest; and figures of merit, a line each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/counters.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/sum_of_parts.hpp"

namespace tinyllama::harness {

/// What a table shows of a counter: "3.83 (3.7-3.9)" of a speedup, "-" where the row has none.
std::string counter_text(const Counter& counter, const Json& row);

/// "10.00 GB/s at 256.00 MiB, 21.00 GB/s at 16.00 MiB": of context.peaks.measured the bandwidth
/// curve's largest traffic, and from there every sixteenth of it. Empty without a curve.
std::string bandwidth_text(const Json& measured_peaks);

/// "f32 400.00 GFLOP/s, bandwidth 10.00 GB/s at 256.00 MiB": what the percentages are of, from the
/// result's context. Empty without peaks.
std::string peaks_text(const Json& context);

/// For the default grid a digest: the full step, each component at its size's own batch and
/// sequence, and the files that were written. For chosen axes, a filter or --columns a table for
/// each component, and where several variants ran one with the variants side by side; rows are
/// sorted by pass, then by the other axes, so that the variants of a point follow each other. Then
/// in both cases the sum of parts, measured peaks, and the reasons of skipped and failed cases.
std::string result_tables(const Options& options, const std::vector<Case>& cases,
                          const ResultDocument& document, const PartsOfStep& step,
                          const MeasureInterleaved& measure = {});

/// `FOM <case>/<figure> = <value> <unit>`: of every peak its best repetition, of every measured
/// case its median one; then, peaks counted as cases, one of
///   SUCCESS: 12 cases measured[, 1 skipped]
///   FAILED: 1 of 12 cases failed
///   NOTHING MEASURED: 3 cases skipped
///   INTERRUPTED: 2 of 12 cases done
/// `interrupted`: the run ended before it was through `all` its cases.
std::string figures_of_merit(const std::vector<Case>& cases, const std::vector<CaseResult>& results,
                             bool interrupted, size_t all);

}  // namespace tinyllama::harness

// The repetitions of one row at a time, a case's or a peak's, as a run of the suite measures them,
// and what becomes of it. prepared_case.hpp says what is done with a case before and after.
#pragma once

#include <memory>
#include <optional>

#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/prepared_case.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/instruments/system_sampler.hpp"

namespace tinyllama::harness {

class Runner {
 public:
  /// `sensors`: what a GPU says of its clock and power while a case is timed; nothing is asked on a
  /// CPU, whose time the asking would take. All references must outlive it.
  Runner(const instruments::Device& device, instruments::MeasuredPeaks& peaks,
         const Options& options, std::optional<instruments::SystemReader> sensors = std::nullopt);
  ~Runner();

  /// Times a case once more, into `outcome`. All but timing happens in the first call of a case.
  /// Nothing is thrown: see PreparedCase.
  void repeat(const Case& test_case, Outcome& outcome);

  /// Measures a peak once more. The time is that of one GEMM of the row's shape, or without a shape
  /// that of 10^9 FLOPs or 10^9 bytes at the measured rate. A higher rate than before becomes the
  /// peak.
  void repeat(const PeakCase& peak, Outcome& outcome);

  /// Frees the current case's work and memory.
  void close();
  /// Called where a step of a case does not end, before the process does.
  void on_hang(CaseGuard::Write write) {
    if (preparation_.guard) preparation_.guard->on_hang(std::move(write));
  }

 private:
  struct Session;
  void begin(const Case& test_case);
  void write_traces(Session& session) const;
  TimingGoal timing_goal(const Session& session) const;
  void time_repetition(Session& session, Outcome& outcome);
  void warn_of_clock(Session& session, const Counters& counters) const;
  Counters counters(const Session& session, double seconds) const;
  void raise_peaks(Session& session, double seconds);

  instruments::Device device_;
  instruments::MeasuredPeaks& peaks_;
  const Options& options_;
  std::optional<instruments::SystemReader> sensors_;
  Preparation preparation_;
  std::unique_ptr<Session> session_;
};

}  // namespace tinyllama::harness

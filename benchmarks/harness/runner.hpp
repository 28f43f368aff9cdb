// The repetitions of one case at a time, as a run of the suite measures them, and what becomes of
// it. prepared_case.hpp says what is done with it before and after.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/outcome.hpp"
#include "benchmarks/harness/prepared_case.hpp"
#include "benchmarks/instruments/measured_peaks.hpp"
#include "benchmarks/instruments/system_sampler.hpp"

namespace tinyllama::harness {

class Runner {
 public:
  /// `weights`: null where they are drawn from the seed. `sensors`: what a GPU says of its clock
  /// and power while a case is timed; nothing is asked on a CPU, whose time the asking would take.
  /// All references must outlive it.
  Runner(const instruments::Device& device, instruments::MeasuredPeaks& peaks,
         const Options& options, const Weights* weights = nullptr,
         std::optional<instruments::SystemReader> sensors = std::nullopt);
  ~Runner();

  /// Times a case once more, into `outcome`. All but timing happens in the first call of a case.
  /// Nothing is thrown: see PreparedCase.
  void repeat(const Case& test_case, Outcome& outcome);

  /// Only the proof, also with new inputs.
  PreparedCase verify(const Case& test_case);

  /// Frees the current case's work and memory.
  void close();
  /// Called with each case when its work begins.
  void on_start(std::function<void(const Case&)> callback) { on_start_ = std::move(callback); }

 private:
  struct Session;
  void begin(const Case& test_case);
  void write_trace(Session& session) const;
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
  std::function<void(const Case&)> on_start_;
};

}  // namespace tinyllama::harness

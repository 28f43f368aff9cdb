// The pipeline of one case: memory check, build, parity gate, warm-up, metering, timing, counters.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/gate_run.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/measured_peaks.hpp"
#include "benchmarks/harness/memory_check.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/parity_gate.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/instruments/system_sampler.hpp"

namespace tinyllama::harness {

struct RunSettings {
  Verify verify = Verify::before;
  uint64_t seed = 42;
  int64_t memory_limit_bytes = 0;  ///< 0: what the device has free
  Admit admit = Admit::fitting;
  double max_seconds_per_case = 10;
  bool cold_cache = false;
  const Weights* weights = nullptr;  ///< null: drawn from the seed; must outlive the runner
  TimingOptions timing{};
  std::string trace_folder{};  ///< empty: no traces
  /// Reads a GPU's clock and power while a case is timed. None on a CPU, where reading would take
  /// processor time from the case.
  std::optional<instruments::SystemReader> sensors{};
};

class Runner {
 public:
  /// `peaks` must outlive it.
  Runner(const instruments::Device& device, MeasuredPeaks& peaks, const RunSettings& settings);

  /// Times one more repetition of a case, into `outcome`. The first call also checks memory,
  /// builds, proves and warms up. Throws nothing, even where the device fails at every call from
  /// now on: errors and refusals go into `outcome`.
  void repeat(const Case& test_case, Outcome& outcome);

  struct Verdict {
    std::string skip;     ///< why it was not verified
    std::string failure;  ///< why it is wrong
    Comparison comparison = {};
  };
  /// Only the proof: memory check, build and parity gate, which is also passed with changed inputs.
  /// `live_beside`: bytes that other open cases hold, which count against the memory limit.
  Verdict verify(const Case& test_case, int64_t live_beside = 0);

  /// Frees the current case's work and memory.
  void close();
  /// Called with each case when its work begins.
  void on_start(std::function<void(const Case&)> callback) { on_start_ = std::move(callback); }

 private:
  struct Session;
  std::unique_ptr<Session> open(const Case& test_case);
  MemoryBudget budget_now() const;
  std::string refuse(const Case& test_case);
  GemmRate expected_rate(const Case& test_case) const;
  std::string refuse_after_gate(const Session& session) const;
  void pass_gate(const Case& test_case, Session& session);
  using Check = std::function<Comparison(const NamedTensors& results)>;
  std::string refuse_results(const Case& test_case, const WorkItem& item, const GateRun& run,
                             const Check& check, Comparison& comparison) const;
  void check_with_new_inputs(Session& session, WorkItem& item, int64_t batch, double usual_seconds);
  void prove_again(Session& session);
  void note_rate(const Case& test_case, double seconds);
  void prepare_timing(Session& session);
  TimingGoal timing_goal(const Session& session) const;
  void time_repetition(Session& session, Outcome& outcome);
  void warn_of_clock(Session& session, const Counters& counters);
  Counters counters(const Session& session, double seconds) const;
  void raise_peaks(Session& session, double seconds);
  void release_memory();
  template <typename Step>
  void guarded(Session& session, Step step);

  instruments::Device device_;
  MeasuredPeaks& peaks_;
  RunSettings settings_;
  int64_t live_beside_ = 0;  // see verify()
  ParityGate gate_;
  std::unique_ptr<CacheFlusher> flusher_;
  std::unique_ptr<Session> session_;
  // The best FLOP rate so far of a component's pass with the same switches and type of GEMMs. It
  // predicts the time of the next case better than the peak does, which libraries may fall far
  // short of.
  std::map<std::string, double> reached_;
  std::function<void(const Case&)> on_start_;

 public:
  ~Runner();
};

}  // namespace tinyllama::harness

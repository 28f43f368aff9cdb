// One case from its memory check to its last proof. Here alone stands the order of what is done
// with it: checked, built, proved, warmed up, metered, timed, proved again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/case_guard.hpp"
#include "benchmarks/harness/memory_check.hpp"
#include "benchmarks/harness/metering.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/parity_gate.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/timing.hpp"
#include "benchmarks/instruments/peaks.hpp"

namespace tinyllama::harness {

struct GateRun;
class CallsOfOperators;

/// What the cases of a run share.
struct Preparation {
  /// `peaks`: rates that tell how long a case would take; null: none is refused for that. All
  /// references must outlive it. Of the options' `verify` it knows nothing: Steps say it.
  Preparation(const instruments::Device& device, const Options& options,
              const instruments::MeasuredPeaks* peaks = nullptr);

  /// Keeps the best rate of GEMMs that a component's pass reached in a type: libraries may fall far
  /// short of their own best GEMM, and a case that would take minutes is better foreseen.
  void note_rate(const Case& test_case, double seconds);

  instruments::Device device;
  const Options& options;
  const instruments::MeasuredPeaks* peaks;
  ParityGate gate;
  std::unique_ptr<CaseGuard> guard;       ///< null where nothing hangs (CaseGuard::of)
  std::unique_ptr<CacheFlusher> flusher;  ///< null without --cold-cache
  std::map<std::string, double> reached;  ///< FLOP/s
};

/// Which of the steps a case goes through before it is timed.
struct Steps {
  enum class Proof { none, results, results_and_new_inputs };
  Proof proof = Proof::results;
  bool times = true;   ///< else nothing follows the proof
  bool meters = true;  ///< counts memory and operators, and checks FLOPs
};

class PreparedCase {
 public:
  /// Takes all steps. Nothing is thrown, also by a device that fails at every call from now on:
  /// errors and refusals are in remarks(). `live_beside`: bytes of tensors that others keep beside
  /// it, which are not left of the memory limit. Both references must outlive it.
  PreparedCase(Preparation& shared, const Case& test_case, const Steps& steps,
               int64_t live_beside = 0);

  const Case& test_case() const { return case_; }
  const Remarks& remarks() const { return remarks_; }
  void add_to_label(const std::string& text) { remarks_.add_to_label(text); }
  /// Whether it was refused or has failed; there is no work then.
  bool is_over() const { return !remarks_.skip.empty() || !remarks_.failure.empty(); }
  WorkItem& item() { return *work_.item; }
  /// Of the proof before timing.
  const Comparison& comparison() const { return comparison_; }
  const Metering& metering() const { return metering_; }
  /// When warm-up began, and how long its last iteration took.
  instruments::TimePoint timing_began() const { return timing_began_; }
  double warm_seconds() const { return warm_seconds_; }

  /// The very work that was timed, once more, with what it cannot have kept. `usual_seconds`: of an
  /// iteration, as timed. Where memory is too small for that the label says so.
  void prove_after_timing(double usual_seconds);
  /// Runs a step within the memory limit. What it throws becomes the case's failure; then its
  /// memory is free.
  void guarded(const std::function<void()>& step);

 private:
  using Check = std::function<Comparison(const NamedTensors& results)>;
  MemoryBudget budget() const;
  std::string refusal(const Steps& steps);
  void prepare(const Steps& steps);
  void pass_gate(const Steps& steps, const CallsOfOperators& calls);
  std::string refuse_results(const WorkItem& item, const GateRun& run, const Check& check,
                             Comparison& comparison) const;
  std::string wrong_timed_results();
  void check_with_new_inputs(WorkItem& item, int64_t batch, double usual_seconds);
  std::string refuse_after_gate() const;
  void warm_up();
  void meter();

  Preparation& shared_;
  const Case& case_;
  int64_t live_beside_;
  CaseWork work_;
  // Of the float64 reference, once refusal() has said that there is room for it.
  std::optional<int64_t> proof_batch_;
  Remarks remarks_;
  Comparison comparison_;
  Metering metering_;
  instruments::TimePoint timing_began_{};
  // of the iteration that the gate looked at, where it was the case's own
  double gate_seconds_ = 0;
  double warm_seconds_ = 0;
};

}  // namespace tinyllama::harness

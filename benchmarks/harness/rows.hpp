// From samples to rows: Google Benchmark's JSON objects of a case with our counters (time x cost
// formulas x peaks; docs/counters.md says what each means), and the file that they make up.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/measured_peaks.hpp"
#include "benchmarks/instruments/system_sampler.hpp"
#include "model/weights.hpp"

namespace tinyllama::harness {

struct Options;

using Json = nlohmann::ordered_json;
using Counters = std::map<std::string, double>;

/// Format of context and counters; results/schema.json describes it.
inline constexpr int kSchemaVersion = 4;

/// Samples that a row keeps of its repetition, evenly spaced in time.
inline constexpr size_t kMostSamplesInARow = 200;

/// Mean and median of a repetition's samples, or repetitions, that differ by more than this share
/// of the median mark the case.
inline constexpr double kDisturbed = 0.10;
/// So do processors that others took from our threads, on average while they were timed.
inline constexpr double kTaken = 0.25;
/// What the reason begins with in the label of such a case.
inline constexpr const char* kDisturbedLabel = "disturbed: ";

struct Repetition {
  double seconds = 0;      ///< of an iteration: their median
  double cpu_seconds = 0;  ///< of an iteration, of the timing thread: their mean
  int64_t iterations = 1;
  Counters counters{};
  std::vector<double>
      samples{};               ///< seconds of each iteration; none where they are no figure of ours
  double watched_seconds = 0;  ///< of the clock, while others' work was watched
  double taken_seconds = 0;    ///< of processors, which others took from our threads meanwhile
};

/// What became of a case.
struct Outcome {
  std::string label;
  std::string skip;          ///< why it was not measured
  std::string failure;       ///< what was wrong with it; outweighs repetitions that went well
  bool interrupted = false;  ///< before all repetitions were done: no result
  int64_t without_time = 0;  ///< repetitions left out because the case had had its time
  std::vector<Repetition> repetitions;

  void add_to_label(const std::string& text) {
    label += label.empty() || text.empty() ? text : "; " + text;
  }
};

/// How Google Benchmark calls a case.
struct RowIdentity {
  std::string run_name;
  int64_t family_index = 0;
  int64_t repetitions = 1;       ///< that were asked for
  std::string time_unit = "ms";  ///< ns, us, ms or s
};

struct CaseResult {
  std::string name;              ///< the plan's name of the case
  Json entries = Json::array();  ///< every repetition and, of two or more, mean, median, stddev and
                                 ///< cv; or one skip or failure
};

/// The time of a repetition is the median of its samples, the case's the median over repetitions of
/// these. `disturbed: ` in the labels says why the rows are not to be trusted as others are.
CaseResult to_rows(const std::string& name, const RowIdentity& identity, const Outcome& outcome);

/// Seconds of a unit of `time_unit`.
double seconds_of_unit(const std::string& time_unit);

struct ResultDocument {
  Json context;
  std::vector<CaseResult> results;
  /// `aggregates_only`: without the repetitions that there are aggregates of.
  std::string text(bool aggregates_only = false) const;
};

/// Above this share of a peak the time, the count or the peak is wrong; up to it, the peak was
/// measured a little too low.
inline constexpr double kLargestShare = 1.05;

/// What an iteration of `seconds` does a second; TFLOPS are of model_flops, whatever the variant
/// computes.
Counters rate_counters(const Case& test_case, double seconds);

/// Counters that do not depend on time: costs, and what the metered iteration said.
Counters fixed_counters(const Case& test_case, const Metering& metering);

/// Of a case on a GPU: device_ms, the time of its kernels, and host_bound, where the profiler saw
/// them all, and, where it is not 1, runs_per_sample. None on a CPU.
Counters device_counters(const Metering& metering, const Timing& timing);

/// clock_MHz, temperature_celsius, power_W, joules_per_token, and limited_by_... where something
/// held the clock down; what was not read is absent. `mean_seconds` of an iteration: energy is mean
/// power by the time over which it is the mean.
Counters sensor_counters(const Case& test_case, const instruments::SystemSamples& samples,
                         double mean_seconds);

/// MFU_percent, MFU_causal_percent, peak_percent and roof_percent of one iteration a second; those
/// of more are in proportion. Throws std::out_of_range where a peak that it takes is not known.
Counters shares(const Case& test_case, const MeasuredPeaks& peaks);

/// Gives every measured row of a case its shares of these peaks, in place of what it had. Where the
/// fastest repetition is above 105 % of a measured peak, or above the datasheet's, the rows have
/// none, and say why as "above_peak".
void add_shares(const Case& test_case, const MeasuredPeaks& peaks, CaseResult& result);

/// add_shares() of every case, at the end of a run: a peak that was measured again counts for every
/// row.
void add_all_shares(const std::vector<Case>& cases, const MeasuredPeaks& peaks,
                    std::vector<CaseResult>& results);

/// Google Benchmark's own context: date, host, caches, library version.
Json benchmark_context();

/// Google Benchmark's context with ours; peaks are added when they have been measured. `weights`:
/// null where they are drawn from the seed.
Json run_context(const Options& options, const instruments::Device& device, const Weights* weights);

/// The dimensions behind a size's name.
Json dimensions_of(const ModelConfig& config);

/// How long a case is timed, and which are left out: options by their names, without dashes.
Json goals_of(const Options& options);

/// Where in the context a journal and the run that continues it must agree: JSON pointers
/// without their first `/`.
std::vector<std::string> circumstances_to_keep();

}  // namespace tinyllama::harness

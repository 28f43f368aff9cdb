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

/// At most so many samples of a repetition are kept in its row, evenly spaced in time.
inline constexpr size_t kMostSamplesInARow = 200;

/// A case is marked as disturbed where the mean and the median of a repetition's samples, or two
/// repetitions, differ by more than this share of the median,
inline constexpr double kDisturbed = 0.10;
/// or where other processes took more processors than this from our threads, on average over the
/// timing.
inline constexpr double kTaken = 0.25;
/// How the reason begins in the label of such a case.
inline constexpr const char* kDisturbedLabel = "disturbed: ";

struct Repetition {
  double seconds = 0;      ///< of an iteration: their median
  double cpu_seconds = 0;  ///< of an iteration, of the timing thread: their mean
  int64_t iterations = 1;
  Counters counters{};
  std::vector<double> samples{};  ///< seconds of each iteration; none where only the time is known
  double watched_seconds = 0;     ///< wall time in which the load of others was watched
  double taken_seconds = 0;       ///< processor time that others took from our threads meanwhile
};

/// What became of a case.
struct Outcome {
  std::string label;
  std::string skip;          ///< why it was not measured
  std::string failure;       ///< what was wrong with it; outweighs repetitions that went well
  bool interrupted = false;  ///< before all repetitions were done: no result
  int64_t without_time = 0;  ///< repetitions left out because the case's time was used up
  std::vector<Repetition> repetitions;

  void add_to_label(const std::string& text) {
    label += label.empty() || text.empty() ? text : "; " + text;
  }
};

/// What identifies a case in Google Benchmark's rows.
struct RowIdentity {
  std::string run_name;
  int64_t family_index = 0;
  int64_t repetitions = 1;       ///< requested
  std::string time_unit = "ms";  ///< ns, us, ms or s
};

struct CaseResult {
  std::string name;              ///< the plan's name of the case
  Json entries = Json::array();  ///< every repetition and, of two or more, mean, median, stddev and
                                 ///< cv; or the one entry of a skip or failure
};

/// A repetition's time is the median of its samples, the case's the median over its repetitions.
/// Where the time is doubtful, the label says why after kDisturbedLabel.
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

/// Rates per second of an iteration that takes `seconds`. TFLOPS count model_flops, whatever the
/// variant computes.
Counters rate_counters(const Case& test_case, double seconds);

/// Counters that do not depend on time: costs, and what metering found.
Counters fixed_counters(const Case& test_case, const Metering& metering);

/// On a GPU: device_ms (the time of the kernels) and host_bound (waits_for_host()), where the
/// profiler saw all kernels, and runs_per_sample, where it is not 1. None on a CPU.
Counters device_counters(const Metering& metering, const Timing& timing);

/// clock_MHz, temperature_celsius, power_W, joules_per_token, and limited_by_... where something
/// held the clock down; what could not be read is absent. `mean_seconds`: mean time of an
/// iteration, which times the mean power gives the energy.
Counters sensor_counters(const Case& test_case, const instruments::SystemSamples& samples,
                         double mean_seconds);

/// MFU_percent, MFU_causal_percent, peak_percent and roof_percent at a rate of one iteration per
/// second; at other rates they are proportional. Throws std::out_of_range where a peak that they
/// need was not measured.
Counters shares(const Case& test_case, const MeasuredPeaks& peaks);

/// Replaces the shares in every measured row of a case by those of these peaks. Where the fastest
/// repetition is above 105 % of a measured peak, or above the datasheet's, the rows get the reason
/// as "above_peak" instead.
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

/// The options that decide how long a case is timed and which cases are left out, by name without
/// dashes.
Json goals_of(const Options& options);

/// What must be equal in the contexts of a journal and of the run that continues it: JSON pointers
/// without their first `/`.
std::vector<std::string> circumstances_to_keep();

}  // namespace tinyllama::harness

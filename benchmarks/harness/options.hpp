// What a user asks of tiny_llama_bench: every option and every flag of Google Benchmark, read and
// checked as far as text can be.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/console/size_options.hpp"
#include "benchmarks/instruments/library_choices.hpp"
#include "model/config.hpp"
#include "model/cost.hpp"
#include "model/plugin.hpp"
#include "model/share.hpp"
#include "model/weights.hpp"

namespace tinyllama::harness {

enum class Verify { before, only, off };
/// Which cases are attempted: those predicted to fit into memory, or all.
enum class Admit { fitting, all };
/// What --find-limit searches along.
enum class LimitAxis { batch, seq };

/// The axes a user named; an empty one was left out.
struct AxisOptions {
  std::vector<std::string> components;
  std::vector<Pass> passes;
  std::vector<std::string> variants;
  std::vector<std::string> sizes;
  std::vector<Dtype> dtypes;
  std::vector<int64_t> batches;
  std::vector<int64_t> seqs;
  bool any() const {
    return !(components.empty() && passes.empty() && variants.empty() && sizes.empty() &&
             dtypes.empty() && batches.empty() && seqs.empty());
  }
};

/// How long a case is timed, in the terms of Google Benchmark's flags.
struct TimingOptions {
  double min_seconds = 0.1;           ///< --benchmark_min_time=0.1s
  std::optional<int64_t> iterations;  ///< --benchmark_min_time=20x: exactly so many
  int64_t repetitions = 3;            ///< --benchmark_repetitions
  double warm_up_seconds = 0.05;      ///< --benchmark_min_warmup_time
  /// --precision: steadiness() of a repetition's samples, as a fraction.
  std::optional<double> precision;
};
/// Precision of a run without --precision. Timing goes on for it up to so many minimum times.
inline constexpr double kDefaultPrecision = 0.02;
inline constexpr double kDefaultPrecisionTimes = 3;

struct Options {
  AxisOptions axes;
  std::string exclude;  ///< --exclude: an expression; empty: no case is left out
  std::vector<Plugin> plugins;
  /// What a step of a case may take; nothing: CaseGuard::of says.
  std::optional<double> hang_seconds;
  std::string device = "auto";
  instruments::LibraryChoices libraries;       ///< --blas, --sdpa-backend
  std::string problem_sizes_file;              ///< empty: the project's own
  std::optional<ModelDimensions> custom_size;  ///< size `custom`, when one of its options was given
  std::vector<console::SizeOption> given_sizes;  ///< those options
  Parallelism ranks;           ///< --tensor-parallel, --pipeline-parallel: one's share is measured
  std::string weights_folder;  ///< --weights
  std::string config_place;    ///< --config
  std::string config_text;     ///< config.json of size `custom`; empty without the two
  std::shared_ptr<const Weights> weights;  ///< of that folder; null: drawn from the seed
  std::optional<int> threads;
  uint64_t seed = 42;
  Verify verify = Verify::before;
  int64_t memory_limit_bytes = 0;  ///< 0: what the device has free
  Admit admit = Admit::fitting;
  double max_seconds_per_case = 10.0;
  TimingOptions timing;
  bool cold_cache = false;
  std::string journal_file;
  bool resume = false;
  bool list = false;
  bool dry_run = false;
  std::optional<LimitAxis> find_limit;
  bool confirm = false;  ///< run the limits that were found, and one step beyond
  bool describe_device = false;
  bool figures_of_merit = false;       ///< print FOM lines and how the run ended (tables.hpp)
  std::vector<std::string> columns;    ///< counters that the tables show beside their own
  std::string trace_folder;            ///< empty: no traces
  std::string execution_trace_folder;  ///< --execution-trace; empty: none
  /// Ranks of the data-parallel step, of which one is traced on a dry run; 1: no such step.
  int64_t world = 1;
  int64_t rank = 0;                              ///< that one
  std::string replay_file;                       ///< --replay: time its operators and nothing else
  bool serve = false;                            ///< stay resident and answer requests (serve.hpp)
  std::string filter = ".";                      ///< --benchmark_filter
  std::string out_file;                          ///< --benchmark_out
  std::string format = "console";                ///< --benchmark_format
  bool writes_aggregates_only = false;           ///< --benchmark_report_aggregates_only
  bool shows_aggregates_only = false;            ///< --benchmark_display_aggregates_only
  std::vector<std::string> benchmark_context;    ///< --benchmark_context: KEY=VALUE,...
  std::vector<std::string> benchmark_arguments;  ///< the given ones that affect results
};

/// Reads the command line. Prints help and returns nothing for --help; throws
/// std::invalid_argument, whose message names the option, its value and what is allowed, for
/// anything else that is not to be run.
std::optional<Options> parse_options(int argc, const char* const* argv,
                                     const std::vector<std::string>& component_names);

/// Opens what --weights or --config names, and makes its config.json the size `custom`; with
/// weights the only one of the run. Does nothing where neither was given. Throws
/// std::invalid_argument that names the file and the tensor or key for what does not hold a model,
/// and the option with both values where --sizes or an option of size `custom` contradicts the
/// file.
void open_model(Options& options);

// Google Benchmark's own flags (benchmark_flags.cpp), --benchmark_NAME=VALUE or the variable
// BENCHMARK_NAME: each is honoured, or refused with what to use in its place.

/// Takes an argument that begins with --benchmark_, or is --v; false for any other. Throws
/// std::invalid_argument that names flag, value and what is allowed.
bool take_benchmark_flag(const std::string& argument, Options& options);

/// Takes the flags that the environment gives, as BENCHMARK_OUT; the command line's come after
/// them. Throws as above.
void take_benchmark_environment(Options& options);

/// Every flag that is known here, without dashes.
std::vector<std::string> benchmark_flag_names();

/// Initialises Google Benchmark with the flags that it handles itself: repetitions, and what is
/// added to the context. Its other flags are set to what the suite needs, whatever BENCHMARK_*
/// variables say, because the library reads those by itself. Throws std::invalid_argument naming a
/// flag that it refuses.
void initialize_benchmark(const Options& options);

}  // namespace tinyllama::harness

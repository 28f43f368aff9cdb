// The command line of tiny_llama_train, read and checked as far as text can be.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/distributed/data_parallel_options.hpp"

namespace tinyllama::training {

/// First and last step of a stretch, both included; steps count from 1.
struct StepRange {
  int64_t first = 0;
  int64_t last = -1;
  bool contains(int64_t step) const { return step >= first && step <= last; }
  bool empty() const { return last < first; }
  int64_t count() const { return empty() ? 0 : last - first + 1; }
};

/// What the operator table is ordered by, the largest first.
enum class OperatorOrder : uint8_t { own_time, time, own_cpu_time, cpu_time, own_memory, calls };

struct TrainOptions : distributed::DataParallelOptions {
  std::string weights_folder;  ///< empty: weights are drawn from the seed
  int64_t num_steps = 50;
  double learning_rate = 1e-4;
  bool deterministic = false;
  std::string data_file;  ///< empty: synthetic tokens
  int64_t log_interval = 1;
  int64_t eval_interval = 0;  ///< 0: no evaluation
  int64_t eval_iters = 10;
  std::string output_folder;  ///< --output-dir; empty: no files but a profiler's
  std::string profile_folder = "profiles";
  std::string save_weights_folder;
  bool validate_setup = false;
  bool profile_pytorch = false;
  bool profile_memory = false;
  bool profile_operators = false;
  bool profile_stacks = false;
  bool profile_flops = false;
  bool emit_ranges = false;
  std::string compared_summary;  ///< performance_summary.json of another run; empty: none
  std::vector<Switch> left_out;  ///< of `optimized`, once its switches are chosen
  std::string note;              ///< what to say of the options before the run
  bool profile_attention_only = false;
  OperatorOrder operator_order = OperatorOrder::own_time;
  int64_t warmup_steps = 4;  ///< before those that the operator profiler records
  int64_t profile_steps = 5;
  int64_t flops_profile_step = 10;
  int rank = 0;  ///< of this process; from the environment
  int ranks = 1;

  bool any_profiler() const { return profile_pytorch || profile_memory || profile_flops; }
  /// Where the files go: --profile-dir with a profiler, else --output-dir, else nowhere.
  std::filesystem::path folder() const;
  /// Steps that the operator profiler, the memory profiler and the FLOPS profiler record; empty
  /// where it is off.
  StepRange operator_steps() const;
  StepRange memory_steps() const;
  StepRange flops_steps() const;
  /// Samples of all ranks together.
  int64_t samples_per_step() const {
    return batch * gradient_accumulation_steps * (share == distributed::Share::tensor ? 1 : ranks);
  }
};

/// Reads the command line. Prints help and returns nothing for --help; throws
/// std::invalid_argument, whose message names the option, its value and what is allowed, for
/// anything else that cannot be run.
std::optional<TrainOptions> parse_train_options(int argc, const char* const* argv,
                                                const console::SizeFiles& sizes);

}  // namespace tinyllama::training

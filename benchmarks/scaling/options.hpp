// The command line of tiny_llama_scaling, read and checked as far as text can be.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/distributed/data_parallel_options.hpp"

namespace tinyllama::scaling {

/// What can be measured, in the order of the results.
inline constexpr const char* kComponents[] = {"full_step", "all_reduce", "reduce_scatter",
                                              "all_gather"};

struct ScalingOptions : distributed::DataParallelOptions {
  std::vector<std::string> components;  ///< of kComponents
  /// Strong scaling: samples of all ranks together, of which `batch` is a rank's share.
  std::optional<int64_t> global_batch;
  int64_t rounds = 10;
  double min_seconds = 0.5;  ///< of each mode in each round; a collective gets a tenth
  std::optional<int64_t> max_bytes;
  bool verify = true;
  std::string out_file;
  std::string format = "console";

  bool measures(const std::string& component) const;
};

/// Reads the command line of one of `ranks` processes. Prints help and returns nothing for --help;
/// throws std::invalid_argument, whose message names the option, its value and what is allowed, for
/// anything else that cannot be run.
std::optional<ScalingOptions> parse_scaling_options(int argc, const char* const* argv, int ranks,
                                                    const console::SizeFiles& sizes);

/// What has to be the same on all ranks: options that decide what is computed and sent, and the
/// build.
distributed::Agreement agreement_of(const ScalingOptions& options);

}  // namespace tinyllama::scaling

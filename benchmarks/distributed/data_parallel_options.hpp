// The options that every data-parallel program has: of its steps, of the machine, and of what ranks
// send each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "benchmarks/console/named_sizes.hpp"
#include "benchmarks/distributed/gradient_reducer.hpp"
#include "benchmarks/instruments/bring_up.hpp"
#include "model/config.hpp"
#include "model/cost.hpp"
#include "model/dtype.hpp"
#include "model/plugin.hpp"
#include "model/variant.hpp"

namespace CLI {
class App;
}

namespace tinyllama::distributed {

struct DataParallelOptions {
  std::string size = "tiny";  ///< "custom" where a dimension was given that it has not
  ModelDimensions dimensions;
  std::string config_place;  ///< --config: gives the dimensions
  std::string config_text;   ///< of the config.json that states them all; empty where none does
  int64_t batch = 8;         ///< samples of a rank's batch or micro-batch
  int64_t seq = 128;         ///< tokens of a sample
  std::vector<Plugin> plugins;
  Variant variant;
  Dtype dtype = Dtype::f32;
  uint64_t seed = 42;
  std::string device = "auto";
  std::optional<int> threads;
  double bucket_MiB = 25;                   ///< gradients that travel together between ranks
  bool overlap = true;                      ///< they travel while the backward runs
  std::optional<c10::ScalarType> compress;  ///< the type they travel in, where not their own
  bool shard_optimizer = false;             ///< each rank keeps a share of the optimizer's state
  double timeout_seconds = 60;              ///< after which a rank that does not answer is given up

  /// The workload of one batch.
  Workload workload() const { return {ModelConfig(dimensions), variant, dtype, batch, seq}; }
  int64_t bucket_bytes() const { return static_cast<int64_t>(bucket_MiB * 1048576.0); }
  BucketOptions bucket_options() const {
    return {.bucket_bytes = bucket_bytes(), .overlap = overlap, .compress = compress};
  }
  std::chrono::milliseconds timeout() const {
    return std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3));
  }
};

/// "none", "bf16" or "f16".
std::string compression_name(const DataParallelOptions& options);

/// Adds --bucket-mb, --no-overlap, --compress, --shard-optimizer and --timeout in this group of the
/// help. The program gives the help texts of the two flags.
void add_data_parallel_options(CLI::App& app, DataParallelOptions& options,
                               const std::string& group, const std::string& no_overlap_words,
                               const std::string& shard_words);

/// What --size or --config means beside those of console::kSizeOptions, and these of batch and
/// sequence, that the command line has. Throws std::invalid_argument where the files have no such
/// size, where an option contradicts --config, and what console::NamedSizes throws.
void apply_size(const CLI::App& app, DataParallelOptions& options, const char* batch_option,
                const char* seq_option, const console::SizeFiles& files);

/// Throws std::invalid_argument for the first option given that states a size: --size, or one of
/// console::kSizeOptions. `source`: the option that states it, with its value.
void refuse_other_sizes(const CLI::App& app, const std::string& source);

/// Throws std::invalid_argument that names options which do not go together, and what to do.
void check_data_parallel_options(const DataParallelOptions& options);

/// The variant without `graph`, because a captured step cannot wait for other ranks. `graph` is
/// dropped where `optimized` chose it; where the user named it, throws std::invalid_argument.
Variant variant_of_ranks(const Variant& variant);

/// What of them says how a rank finds its place on the machine.
instruments::MachineChoice machine_choice(const DataParallelOptions& options,
                                          const LaunchEnvironment& where);

/// The options that have to be the same on all ranks, and the build.
Agreement shared_agreement(const DataParallelOptions& options);

}  // namespace tinyllama::distributed

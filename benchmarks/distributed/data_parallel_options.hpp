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

/// What of a training step the ranks share, beside the samples.
enum class Share {
  ddp,    ///< nothing: each has the whole model, and gradients are summed
  zero1,  ///< the optimizer's state
  zero3,  ///< parameters, gradients and the optimizer's state
  tensor  ///< the layers; they have the same samples
};
std::string_view to_string(Share share);

struct DataParallelOptions {
  std::string size = "tiny";  ///< "custom" where a dimension was given that it has not
  ModelDimensions dimensions;
  std::string config_place;  ///< --config: gives the dimensions
  std::string config_text;   ///< of the config.json that states them all; empty where none does
  int64_t batch = 8;         ///< samples of a rank's batch or micro-batch
  int64_t seq = 128;         ///< tokens of a sample
  int64_t gradient_accumulation_steps = 1;  ///< micro-batches of a step
  std::vector<Plugin> plugins;
  Variant variant;
  Dtype dtype = Dtype::f32;
  uint64_t seed = 42;
  std::string device = "auto";
  std::optional<int> threads;
  double bucket_MiB = 25;                   ///< gradients that travel together between ranks
  bool overlap = true;                      ///< they travel while the backward runs
  std::optional<c10::ScalarType> compress;  ///< the type they travel in, where not their own
  Share share = Share::ddp;                 ///< --share, or --shard-optimizer for zero1
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

/// Adds --bucket-mb, --no-overlap, --compress, --share, --shard-optimizer and --timeout in this
/// group of the help. The program gives the help texts of --no-overlap and --share.
void add_data_parallel_options(CLI::App& app, DataParallelOptions& options,
                               const std::string& group, const std::string& no_overlap_words,
                               const std::string& share_words);

/// What --shard-optimizer means for `share`. Throws std::invalid_argument where --share contradicts
/// it, or --bucket-mb or --no-overlap, which then would change nothing.
void apply_share(const CLI::App& app, DataParallelOptions& options);

/// What --size or --config means beside those of console::kSizeOptions, and these of batch and
/// sequence, that the command line has. Throws std::invalid_argument where the files have no such
/// size, where an option contradicts --config, and what console::NamedSizes throws.
void apply_size(const CLI::App& app, DataParallelOptions& options, const char* batch_option,
                const char* seq_option, const console::SizeFiles& files);

/// Throws std::invalid_argument for the first option given that states a size: --size, or one of
/// console::kSizeOptions. `source`: the option that states it, with its value.
void refuse_other_sizes(const CLI::App& app, const std::string& source);

/// Throws std::invalid_argument that names options which do not go together, or not with so many
/// ranks, and what to do.
void check_data_parallel_options(const DataParallelOptions& options, int ranks);

/// The variant without `graph`, because a captured step cannot wait for other ranks, and of
/// `tensor` without what computes the loss in one, because that is of all ranks' logits. They are
/// dropped where `optimized` chose them; where the user named one, throws std::invalid_argument.
Variant variant_of_ranks(const Variant& variant, Share share);

/// Bytes that one of `ranks` ranks needs for a step of these options at its most.
int64_t predict_rank_bytes(const DataParallelOptions& options, int ranks, c10::DeviceType device);

/// What of them says how a rank finds its place on the machine.
instruments::MachineChoice machine_choice(const DataParallelOptions& options,
                                          const LaunchEnvironment& where);

/// The options that have to be the same on all ranks, and the build.
Agreement shared_agreement(const DataParallelOptions& options);

}  // namespace tinyllama::distributed

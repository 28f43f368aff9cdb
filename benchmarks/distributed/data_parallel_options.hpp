// The options that every data-parallel program has.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "benchmarks/distributed/gradient_reducer.hpp"
#include "model/dtype.hpp"
#include "model/variant.hpp"

namespace CLI {
class App;
}

namespace tinyllama::distributed {

struct DataParallelOptions {
  double bucket_MiB = 25;        ///< gradients that travel together between ranks
  bool overlap = true;           ///< they travel while the backward runs
  bool shard_optimizer = false;  ///< each rank keeps a share of the optimizer's state
  double timeout_seconds = 60;   ///< after which a rank that does not answer is given up

  int64_t bucket_bytes() const { return static_cast<int64_t>(bucket_MiB * 1048576.0); }
  BucketOptions bucket_options() const {
    return {.bucket_bytes = bucket_bytes(), .overlap = overlap};
  }
  std::chrono::milliseconds timeout() const {
    return std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1e3));
  }
};

/// Adds --bucket-mb, --no-overlap, --shard-optimizer and --timeout in this group of the help. The
/// program gives the help texts of the two flags.
void add_data_parallel_options(CLI::App& app, DataParallelOptions& options,
                               const std::string& group, const std::string& no_overlap_words,
                               const std::string& shard_words);

/// Throws std::invalid_argument that names the option, its value and what is allowed.
void check_data_parallel_options(const DataParallelOptions& options, Dtype dtype);

/// The variant without `graph`, because a captured step cannot wait for other ranks. `graph` is
/// dropped where `optimized` chose it; where the user named it, throws std::invalid_argument.
Variant variant_of_ranks(const Variant& variant);

/// The options that have to be the same on all ranks, and the build.
Agreement shared_agreement(const DataParallelOptions& options);

}  // namespace tinyllama::distributed

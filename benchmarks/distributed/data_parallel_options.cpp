#include "benchmarks/distributed/data_parallel_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <stdexcept>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/distributed/digest.hpp"
#include "benchmarks/instruments/context.hpp"

namespace tinyllama::distributed {
namespace {

constexpr double kSmallestBucketMiB = 1.0 / 1024;
constexpr double kLargestBucketMiB = 1 << 20;
constexpr double kShortestTimeout = 0.1;
// Eleven days: far below what clocks that count nanoseconds overflow at.
constexpr double kLongestTimeout = 1e6;

}  // namespace

void add_data_parallel_options(CLI::App& app, DataParallelOptions& options,
                               const std::string& group, const std::string& no_overlap_words,
                               const std::string& shard_words) {
  app.add_option("--bucket-mb", options.bucket_MiB,
                 "gradients that travel together, MiB (the first bucket has at most 1)")
      ->check(console::number())
      ->group(group)
      ->capture_default_str();
  app.add_flag_callback(
         "--no-overlap", [&options] { options.overlap = false; }, no_overlap_words)
      ->group(group);
  app.add_flag("--shard-optimizer", options.shard_optimizer, shard_words)->group(group);
  app.add_option("--timeout", options.timeout_seconds,
                 "seconds after which a rank that does not answer is given up")
      ->check(console::number())
      ->group(group)
      ->capture_default_str();
}

void check_data_parallel_options(const DataParallelOptions& options, Dtype dtype) {
  if (!(options.bucket_MiB >= kSmallestBucketMiB && options.bucket_MiB <= kLargestBucketMiB)) {
    throw std::invalid_argument(fmt::format("--bucket-mb {:g}: must be from {:g} to {:g}",
                                            options.bucket_MiB, kSmallestBucketMiB,
                                            kLargestBucketMiB));
  }
  if (!(options.timeout_seconds >= kShortestTimeout &&
        options.timeout_seconds <= kLongestTimeout)) {
    throw std::invalid_argument(fmt::format("--timeout {:g}: must be from {:g} to {:g} seconds",
                                            options.timeout_seconds, kShortestTimeout,
                                            kLongestTimeout));
  }
  if (options.shard_optimizer && dtype == Dtype::amp_f16) {
    throw std::invalid_argument(
        "--shard-optimizer with --dtype amp_f16: whether a step is skipped is decided on all "
        "gradients, and a rank has a share of them only; take amp_bf16");
  }
}

Variant variant_of_ranks(const Variant& variant) {
  if (variant.is_optimized()) return variant.without(Switch::graph).named_optimized();
  if (!variant.has(Switch::graph)) return variant;
  throw std::invalid_argument(
      fmt::format("--variant '{}': a captured step cannot wait for other ranks; leave graph out",
                  variant.name()));
}

Agreement shared_agreement(const DataParallelOptions& options) {
  const instruments::SourceVersion version = instruments::source_version();
  return {{"commit of the build", version.commit + (version.dirty ? " with changes" : "")},
          // Of one commit there are many builds: other changes, another compiler or build type.
          {"digest of the program", program_digest()},
          {"libtorch", instruments::torch_version()},
          {"--bucket-mb", fmt::format("{:g}", options.bucket_MiB)},
          {"--no-overlap", options.overlap ? "no" : "yes"},
          {"--shard-optimizer", options.shard_optimizer ? "yes" : "no"}};
}

}  // namespace tinyllama::distributed

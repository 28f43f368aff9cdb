#include "benchmarks/distributed/data_parallel_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <stdexcept>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/instruments/context.hpp"
#include "core/digest.hpp"

namespace tinyllama::distributed {
namespace {

// Of the file that this process runs; "unknown" where it cannot be read.
std::string program_digest() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  if (!file) return "unknown";
  Digest digest;
  std::vector<char> piece(1 << 20);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0)
    digest.add(piece.data(), static_cast<size_t>(file.gcount()));
  return file.bad() ? "unknown" : digest.text();
}

}  // namespace

void add_data_parallel_options(CLI::App& app, DataParallelOptions& options,
                               const std::string& group, const std::string& no_overlap_words,
                               const std::string& shard_words) {
  app.add_option(
         "--bucket-mb", options.bucket_MiB,
         "gradients that travel together, MiB at most (of the first bucket 1), unless one alone is "
         "larger")
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
  const auto check = [](const char* option, double value, double lowest, double highest,
                        const char* unit) {
    if (value >= lowest && value <= highest) return;
    throw std::invalid_argument(
        fmt::format("{} {:g}: must be from {:g} to {:g}{}", option, value, lowest, highest, unit));
  };
  check("--bucket-mb", options.bucket_MiB, 1.0 / 1024, 1 << 20, "");
  // Up to eleven days: far below what clocks that count nanoseconds overflow at.
  check("--timeout", options.timeout_seconds, 0.1, 1e6, " seconds");
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

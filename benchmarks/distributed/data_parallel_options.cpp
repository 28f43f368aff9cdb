#include "benchmarks/distributed/data_parallel_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/console/size_options.hpp"
#include "benchmarks/instruments/context.hpp"
#include "core/digest.hpp"
#include "core/version.hpp"

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

const std::vector<std::pair<std::string, std::optional<c10::ScalarType>>> kCompressions = {
    {"none", std::nullopt}, {"bf16", c10::ScalarType::BFloat16}, {"f16", c10::ScalarType::Half}};

}  // namespace

std::string compression_name(const DataParallelOptions& options) {
  return std::ranges::find(kCompressions, options.compress,
                           &std::pair<std::string, std::optional<c10::ScalarType>>::second)
      ->first;
}

void add_data_parallel_options(CLI::App& app, DataParallelOptions& options,
                               const std::string& group, const std::string& no_overlap_words,
                               const std::string& shard_words) {
  app.add_option("--bucket-mb", options.bucket_MiB,
                 "gradients travel together once they are so many MiB or more (the first time: 1)")
      ->check(console::number_from(1.0 / 1024, 1 << 20))
      ->group(group)
      ->capture_default_str();
  app.add_flag_callback(
         "--no-overlap", [&options] { options.overlap = false; }, no_overlap_words)
      ->group(group);
  console::add_choice<std::optional<c10::ScalarType>>(
      app, "--compress", options.compress, kCompressions,
      "none, bf16 or f16: the type that float32 gradients are sent and summed in")
      ->group(group);
  app.add_flag("--shard-optimizer", options.shard_optimizer, shard_words)->group(group);
  app.add_option("--timeout", options.timeout_seconds,
                 "seconds after which a rank that does not answer is given up")
      // Up to eleven days: far below what clocks that count nanoseconds overflow at.
      ->check(console::number_from(0.1, 1e6, " seconds"))
      ->group(group)
      ->capture_default_str();
}

void refuse_other_sizes(const CLI::App& app, const std::string& source) {
  std::vector<const char*> names = {"--size"};
  for (const auto& option : console::kSizeOptions) names.push_back(option.name);
  for (const char* name : names) {
    if (app.count(name) == 0) continue;
    throw std::invalid_argument(fmt::format(
        "{}: must be left out with {}, whose config.json gives the dimensions", name, source));
  }
}

void apply_size(const CLI::App& app, DataParallelOptions& options, const char* batch_option,
                const char* seq_option, const console::SizeFiles& files) {
  ProblemSize size{"custom", ModelConfig(), console::kCustomBatch, console::kCustomSeq};
  if (app.count("--config") > 0) {
    refuse_other_sizes(app, "--config " + options.config_place);
    ConfigFile file = console::open_config_option(options.config_place);
    size.config = file.config;
    size.config_text = std::move(file.text);
  } else {
    size = console::NamedSizes(files).find("--size", options.size);
  }
  ModelDimensions dimensions = size.config.dimensions();
  for (const auto& [option, dimension] : console::kSizeOptions) {
    if (app.count(option) > 0) dimensions.*dimension = options.dimensions.*dimension;
  }
  const bool is_of_the_name = dimensions == size.config.dimensions();
  options.dimensions = dimensions;
  options.size = is_of_the_name ? size.name : "custom";
  if (is_of_the_name) options.config_text = size.config_text;
  if (app.count(batch_option) == 0) options.batch = size.batch;
  if (app.count(seq_option) == 0) options.seq = size.seq;
}

void check_data_parallel_options(const DataParallelOptions& options) {
  if (options.shard_optimizer && options.dtype == Dtype::amp_f16) {
    throw std::invalid_argument(
        "--shard-optimizer with --dtype amp_f16: whether a step is skipped is decided on all "
        "gradients, and a rank has a share of them only; take amp_bf16");
  }
  if (!options.compress) return;
  const std::string given = "--compress " + compression_name(options);
  if (options.shard_optimizer)
    throw std::invalid_argument(
        given +
        " with --shard-optimizer: a share is summed in the gradients' own type; leave one "
        "out");
  if (storage_type(options.dtype) != c10::ScalarType::Float) {
    throw std::invalid_argument(
        fmt::format("{} with --dtype {}: only float32 gradients can be compressed; leave it out",
                    given, to_string(options.dtype)));
  }
}

Variant variant_of_ranks(const Variant& variant) {
  if (variant.is_optimized()) return variant.without(Switch::graph).named_optimized();
  if (!variant.has(Switch::graph)) return variant;
  throw std::invalid_argument(
      fmt::format("--variant '{}': a captured step cannot wait for other ranks; leave graph out",
                  variant.name()));
}

instruments::MachineChoice machine_choice(const DataParallelOptions& options,
                                          const LaunchEnvironment& where) {
  instruments::MachineChoice choice{.device = options.device, .threads = options.threads};
  if (where.world_size > 1) choice.local_rank = where.local_rank;
  choice.says_notes = where.rank == 0;
  return choice;
}

Agreement shared_agreement(const DataParallelOptions& options) {
  const SourceVersion version = source_version();
  std::vector<std::string> dimensions;
  for (const auto& [name, dimension] : console::kSizeOptions)
    dimensions.push_back(fmt::format("{}={}", name, options.dimensions.*dimension));
  dimensions.push_back(fmt::format("norm_eps={:.17g} rope_theta={:.17g} pad_token_id={}",
                                   options.dimensions.norm_eps, options.dimensions.rope_theta,
                                   options.dimensions.padding_token.value_or(-1)));
  const auto features = console::features_of(ModelConfig(options.dimensions));
  for (const auto& [name, value] : features.items())
    dimensions.push_back(fmt::format("{}={}", name, value.dump()));
  std::vector<std::string> plugins;
  for (const Plugin& plugin : options.plugins) plugins.push_back(plugin.sha256);
  return {{"commit of the build", version.commit + (version.dirty ? " with changes" : "")},
          // Of one commit there are many builds: other changes, another compiler or build type.
          {"digest of the program", program_digest()},
          {"libtorch", TORCH_VERSION},
          {"dimensions of the model", fmt::format("{}", fmt::join(dimensions, " "))},
          {"--plugin", fmt::format("{}", fmt::join(plugins, " "))},
          {"--variant", options.variant.switch_names()},
          {"--dtype", std::string(to_string(options.dtype))},
          {"--seed", std::to_string(options.seed)},
          {"--bucket-mb", fmt::format("{:g}", options.bucket_MiB)},
          {"--no-overlap", options.overlap ? "no" : "yes"},
          {"--compress", compression_name(options)},
          {"--shard-optimizer", options.shard_optimizer ? "yes" : "no"}};
}

}  // namespace tinyllama::distributed

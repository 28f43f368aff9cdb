#include "benchmarks/distributed/data_parallel_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/console/size_options.hpp"
#include "benchmarks/distributed/gradient_reducer.hpp"
#include "benchmarks/distributed/sharded_parameters.hpp"
#include "benchmarks/distributed/tensor_parallel.hpp"
#include "benchmarks/instruments/context.hpp"
#include "core/digest.hpp"
#include "core/version.hpp"
#include "model/memory_prediction.hpp"
#include "model/tiny_llama.hpp"

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

const std::vector<std::pair<std::string, Share>> kShares = {{"ddp", Share::ddp},
                                                            {"zero1", Share::zero1},
                                                            {"zero3", Share::zero3},
                                                            {"tensor", Share::tensor}};

const std::vector<std::pair<std::string, std::optional<c10::ScalarType>>> kCompressions = {
    {"none", std::nullopt}, {"bf16", c10::ScalarType::BFloat16}, {"f16", c10::ScalarType::Half}};

}  // namespace

std::string compression_name(const DataParallelOptions& options) {
  return std::ranges::find(kCompressions, options.compress,
                           &std::pair<std::string, std::optional<c10::ScalarType>>::second)
      ->first;
}

std::string_view to_string(Share share) {
  return kShares[static_cast<size_t>(share)].first;
}

void add_data_parallel_options(CLI::App& app, DataParallelOptions& options,
                               const std::string& group, const std::string& no_overlap_words,
                               const std::string& share_words) {
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
  console::add_choice(app, "--share", options.share, kShares, share_words)->group(group);
  app.add_flag("--shard-optimizer")->description("short for --share zero1")->group(group);
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

void apply_share(const CLI::App& app, DataParallelOptions& options) {
  const auto refuse = [&](const char* option, const char* why) {
    throw std::invalid_argument(fmt::format("{} with --share {}: {}; leave one out", option,
                                            to_string(options.share), why));
  };
  const bool is_given = app.count("--share") > 0;
  if (app.count("--shard-optimizer") > 0) {
    if (is_given && options.share != Share::zero1)
      refuse("--shard-optimizer", "it is short for --share zero1");
    options.share = Share::zero1;
  }
  if (options.share != Share::zero3 && options.share != Share::tensor) return;
  if (app.count("--bucket-mb") > 0) refuse("--bucket-mb", "it sends nothing in buckets");
  if (options.share == Share::tensor && app.count("--no-overlap") > 0)
    refuse("--no-overlap", "the next layer waits for each sum, and nothing overlaps");
}

namespace {

void check_share(const DataParallelOptions& options, int ranks) {
  const ModelConfig config(options.dimensions);
  switch (options.share) {
    case Share::ddp:
      return;
    case Share::zero1:
      if (options.dtype != Dtype::amp_f16) return;
      throw std::invalid_argument(
          "dtype amp_f16 (--shard-optimizer): whether a step is skipped is decided on all "
          "gradients, and a rank has a share of them only; take amp_bf16");
    case Share::zero3:
      return refuse_sharded_parameters(config, options.dtype);
    case Share::tensor:
      refuse_tensor_parallel(options.dtype);
      static_cast<void>(tensor_share(config, 0, ranks));
  }
}

}  // namespace

void check_data_parallel_options(const DataParallelOptions& options, int ranks) {
  try {
    check_share(options, ranks);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(
        fmt::format("--share {}: {}", to_string(options.share), error.what()));
  }
  if (!options.compress) return;
  const std::string given = "--compress " + compression_name(options);
  if (options.share != Share::ddp) {
    throw std::invalid_argument(
        fmt::format("{} with --share {}: shares are sent in their own type; leave one out", given,
                    to_string(options.share)));
  }
  if (storage_type(options.dtype) != c10::ScalarType::Float) {
    throw std::invalid_argument(
        fmt::format("{} with --dtype {}: only float32 gradients can be compressed; leave it out",
                    given, to_string(options.dtype)));
  }
}

namespace {

// `variant` without a switch that `optimized` may have, and nobody may name. `why`: it cannot be.
Variant without_switch(const Variant& variant, Switch unwanted, const char* why) {
  if (variant.is_optimized()) return variant.without(unwanted).named_optimized();
  if (!variant.has(unwanted)) return variant;
  throw std::invalid_argument(fmt::format("--variant '{}': {}", variant.name(), why));
}

}  // namespace

Variant variant_of_ranks(const Variant& variant, Share share) {
  const Variant found = without_switch(
      variant, Switch::graph, "a captured step cannot wait for other ranks; leave graph out");
  if (share != Share::tensor) return found;
  if (found.filling(Slot::linear_cross_entropy) != nullptr) {
    throw std::invalid_argument(
        fmt::format("--variant '{}' with --share tensor: the loss is of all ranks' logits; leave "
                    "the operator in linear_cross_entropy out",
                    variant.name()));
  }
  return without_switch(
      found, Switch::fused_loss,
      "with --share tensor the loss is of all ranks' logits; leave fused_loss out");
}

namespace {

// Beside a step of one micro-batch: tokens and targets of the others, which every step has again;
// its loss, and the numbers that ranks tell each other, which are a few of each parameter.
int64_t bytes_beside(const DataParallelOptions& options) {
  constexpr double kTokenBytes = 2 * sizeof(int64_t);
  constexpr double kLayerBytes = 128;
  const double tokens = static_cast<double>(options.gradient_accumulation_steps - 1) *
                        static_cast<double>(options.batch) * static_cast<double>(options.seq);
  const double layers = static_cast<double>(options.dimensions.n_layers) + 1;
  return static_cast<int64_t>(
      std::min(tokens * kTokenBytes + layers * kLayerBytes, kBeyondAnyDevice));
}

std::vector<NamedTensors> parts_on_meta(const DataParallelOptions& options) {
  TensorInitializer shapes(options.seed, options.dtype, c10::Device(c10::DeviceType::Meta));
  return TinyLlama(ModelConfig(options.dimensions), options.variant, options.seq, shapes).parts();
}

NamedTensors parameters_on_meta(const DataParallelOptions& options) {
  NamedTensors parameters;
  for (const NamedTensors& part : parts_on_meta(options)) append(parameters, part);
  return parameters;
}

// Beside gradients that lie in the messages: those of micro-batches before, and compressed copies,
// of which Gloo's two threads may not have let go of the last step's.
int64_t bytes_beside_messages(const DataParallelOptions& options, int64_t weights) {
  const int64_t before = options.gradient_accumulation_steps > 1 ? weights : 0;
  if (!options.compress) return before;
  auto copies = message_bytes(parameters_on_meta(options), options.bucket_options());
  std::ranges::sort(copies, std::greater());
  const auto sum_of = [&](ptrdiff_t count) {
    return std::accumulate(copies.begin(), copies.begin() + count, int64_t{0});
  };
  const ptrdiff_t all = std::ssize(copies);
  return sum_of(std::min<ptrdiff_t>(2, all)) + std::max(before, sum_of(all));
}

// `step`: of a process that has no messages.
int64_t sharded_optimizer_bytes(const DataParallelOptions& options, int ranks,
                                const PredictedMemory& step, c10::DeviceType device) {
  const ShardedAdamWBytes bytes =
      sharded_adamw_bytes(parameters_on_meta(options), ranks, options.bucket_bytes());
  // A backward's own gradients, which lie in the buckets here, are as much as the copies of those
  // messages that are complete.
  const int64_t backward =
      std::max(step.peaks.forward, step.peaks.backward) - step.weights - step.optimizer_state;
  return step.weights + bytes.held() + bytes.kept_over(device) +
         std::max(backward, step.inputs + bytes.update_over(device));
}

// `step`: of a process that has whole parameters.
int64_t sharded_parameters_bytes(const DataParallelOptions& options, int ranks,
                                 const PredictedMemory& step, c10::DeviceType device) {
  const ShardedBytes bytes = sharded_bytes(parts_on_meta(options), ranks);
  // Beside parameters, gradients and moments: a backward may have as much again as it begins with,
  // and no more than in a plain step.
  const int64_t activations =
      std::min(step.inputs + 2 * step.activations,
               std::max(step.peaks.forward, step.peaks.backward) - 3 * step.weights);
  // It begins with a whole model.
  return std::max(bytes.held() + bytes.in_flight_over(device) + activations,
                  step.weights + 3 * bytes.share);
}

// Gloo's two threads let go of a message a moment after it has arrived.
int64_t kept_messages_bytes(const Workload& share, c10::DeviceType device) {
  if (device != c10::DeviceType::CPU) return 0;
  return 2 * share.tokens() * share.config.hidden_dim() * storage_bytes(share.dtype);
}

}  // namespace

int64_t predict_rank_bytes(const DataParallelOptions& options, int ranks, c10::DeviceType device) {
  Workload workload = options.workload();
  const int64_t weights = count_parameters(workload.config) * storage_bytes(options.dtype);
  const bool accumulates = options.gradient_accumulation_steps > 1;
  const Share share = ranks > 1 ? options.share : Share::ddp;
  ShareHooks hooks(0, ranks, workload.config.vocab_size());
  StepSetting setting = {.has_gradients = accumulates};
  if (share == Share::ddp && ranks > 1) setting.has_gradients = true;  // in messages
  if (share == Share::zero3) setting.has_gradients = false;            // in messages of parts
  if (share == Share::tensor) {
    setting.hooks = &hooks;
    workload.config = tensor_share(workload.config, 0, ranks);
  }
  const PredictedMemory step = predict_step_memory(workload, device, setting);
  const int64_t beside = bytes_beside(options);
  if (ranks == 1 || static_cast<double>(step.peak()) >= kBeyondAnyDevice)
    return step.peak() + beside;
  switch (share) {
    case Share::ddp:
      return step.peak() + bytes_beside_messages(options, weights) + beside;
    case Share::zero1:
      return sharded_optimizer_bytes(options, ranks, step, device) + beside;
    case Share::zero3:
      return sharded_parameters_bytes(options, ranks, step, device) + beside;
    case Share::tensor:
      // Its share comes from a whole model.
      return std::max(step.peak() + kept_messages_bytes(workload, device) + beside,
                      weights + step.weights + step.optimizer_state);
  }
  return step.peak();
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
          {"--share", std::string(to_string(options.share))}};
}

}  // namespace tinyllama::distributed

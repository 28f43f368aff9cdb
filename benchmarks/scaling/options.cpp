#include "benchmarks/scaling/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/console/size_options.hpp"

namespace tinyllama::scaling {
namespace {

constexpr const char* kDescription =
    "Measures data-parallel training steps and the collectives under them, one process a rank.\n"
    "Rank and number of ranks come from torchrun, mpirun or srun; scripts/scaling starts local "
    "ones.\n"
    "What each row and counter means: docs/distributed.md.";
constexpr const char* kFooter =
    "Exit status: 0 done; 1 a wrong result, or a rank was lost; 2 bad options, or ranks that "
    "cannot "
    "meet;\n"
    "130 interrupted, with what was measured written.";

void add_model_options(CLI::App& app, ScalingOptions& options) {
  app.option_defaults()->group("Step");
  app.add_option("--size", options.size,
                 "problem size or published model (docs/models.md); gives batch and sequence their "
                 "defaults")
      ->capture_default_str();
  app.add_option("--config", options.config_place, console::kConfigHelp);
  console::add_plugins(app, options.plugins);
  console::add_variant(app, options.variant, options.plugins);
  console::add_dtype(app, options.dtype, "f32, bf16, f16, amp_bf16 or amp_f16");
  app.add_option("--batch", options.batch, "samples of a rank and step: weak scaling")
      ->transform(console::integer<int64_t>(1));
  app.add_option("--global-batch", options.global_batch,
                 "samples of all ranks together: strong scaling")
      ->transform(console::integer<int64_t>(1));
  app.add_option("--seq", options.seq, "tokens of a sample")
      ->transform(console::integer<int64_t>(2));
  for (const auto& [name, dimension] : console::kSizeOptions) {
    app.add_option(name, options.dimensions.*dimension, "of a size of your own")
        ->transform(console::integer<int64_t>());
  }
  app.add_option("--threads", options.threads, "CPU threads of a rank (default: libtorch's choice)")
      ->transform(console::integer(1, console::kMostThreads));
  app.add_option("--device", options.device,
                 "auto, cpu, cuda or hip; a rank takes the device of "
                 "its number on its host")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of weights and tokens")
      ->transform(console::integer<uint64_t>())
      ->capture_default_str();
}

void add_communication_options(CLI::App& app, ScalingOptions& options) {
  const char* const group = "Communication";
  app.option_defaults()->group(group);
  distributed::add_data_parallel_options(app, options, group,
                                         "leave out the steps that overlap communication",
                                         "ddp, or what the ranks share in further steps beside "
                                         "it: zero1 (optimizer's state), zero3 (also parameters "
                                         "and gradients) or tensor (layers)");
  app.add_option_function<std::string>(
      "--max-bytes",
      [&options](const std::string& text) {
        options.max_bytes = console::parse_memory_size("--max-bytes", text);
      },
      "largest message of a collective, such as 64MiB (default: the largest bucket)");
}

void add_measuring_options(CLI::App& app, ScalingOptions& options) {
  app.option_defaults()->group("Measuring");
  options.components = {std::begin(kComponents), std::end(kComponents)};
  app.add_option_function<std::string>(
      "--components",
      [&options, known = options.components](const std::string& text) {
        options.components = console::parse_names("--components", text, known);
      },
      fmt::format("of {} (default: all)", fmt::join(kComponents, ",")));
  app.add_option("--rounds", options.rounds, "in each of them everything is measured once")
      ->transform(console::integer<int64_t>(1))
      ->capture_default_str();
  app.add_option("--min-time", options.min_seconds,
                 "seconds of each kind of step in a round; a collective gets a tenth")
      ->check(console::number("0 or more",
                              [](double value) { return value >= 0 && std::isfinite(value); }))
      ->capture_default_str();
  console::add_choice(app, "--verify", options.verify, {{"before", true}, {"off", false}},
                      "before: prove results before timing; off");
  app.add_option("--benchmark_out", options.out_file, "result file, written by rank 0");
  console::add_choice<std::string>(app, "--benchmark_format", options.format,
                                   {{"console", "console"}, {"json", "json"}},
                                   "what rank 0 prints: console or json");
}

void apply_global_batch(const CLI::App& app, ScalingOptions& options, int ranks) {
  if (!options.global_batch) return;
  if (app.count("--batch") > 0) {
    throw std::invalid_argument(fmt::format(
        "--batch {} with --global-batch {}: one of them says how many samples a rank gets",
        options.batch, *options.global_batch));
  }
  if (*options.global_batch % ranks != 0) {
    throw std::invalid_argument(fmt::format("--global-batch {}: must be a multiple of the {} ranks",
                                            *options.global_batch, ranks));
  }
  options.batch = *options.global_batch / ranks;
}

void check(const ScalingOptions& options, int ranks) {
  static_cast<void>(ModelConfig(options.dimensions));
  check_batch_and_seq(options.batch, options.seq);
  distributed::check_data_parallel_options(options, ranks);
  constexpr int64_t least = 1024;
  if (options.max_bytes.value_or(least) < least) {
    throw std::invalid_argument(
        fmt::format("--max-bytes {}: must be {} or more", *options.max_bytes, least));
  }
}

}  // namespace

bool ScalingOptions::measures(const std::string& component) const {
  return std::find(components.begin(), components.end(), component) != components.end();
}

std::optional<ScalingOptions> parse_scaling_options(int argc, const char* const* argv, int ranks,
                                                    const console::SizeFiles& sizes) {
  ScalingOptions options;
  options.size = "small";
  CLI::App app(kDescription, "tiny_llama_scaling");
  app.footer(kFooter);
  add_model_options(app, options);
  add_communication_options(app, options);
  add_measuring_options(app, options);
  if (!console::parse_command_line(app, {argv + 1, argv + argc})) return std::nullopt;
  distributed::apply_size(app, options, "--batch", "--seq", sizes);
  distributed::apply_share(app, options);
  apply_global_batch(app, options, ranks);
  check(options, ranks);
  return options;
}

distributed::Agreement agreement_of(const ScalingOptions& options) {
  const auto or_none = [](const std::optional<int64_t>& value) {
    return value ? std::to_string(*value) : std::string("none");
  };
  distributed::Agreement all = distributed::shared_agreement(options);
  all.merge(distributed::Agreement{
      {"--components", fmt::format("{}", fmt::join(options.components, ","))},
      {"--batch", std::to_string(options.batch)},
      {"--global-batch", or_none(options.global_batch)},
      {"--seq", std::to_string(options.seq)},
      {"--rounds", std::to_string(options.rounds)},
      {"--max-bytes", or_none(options.max_bytes)},
      {"--verify", options.verify ? "before" : "off"},
  });
  return all;
}

}  // namespace tinyllama::scaling

#include "benchmarks/harness/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ranges>
#include <stdexcept>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/harness/counters.hpp"
#include "model/variant.hpp"

namespace tinyllama::harness {
namespace {

constexpr const char* kDescription =
    "Measures the components of a LLaMA training step.\n\n"
    "With no axis option (components, passes, variants, sizes, dtypes, batch, seq) the default\n"
    "grid runs. With one, each axis that is not given has a short default: all components, all\n"
    "passes, baseline and optimized, tiny, f32, and each size's own batch and sequence.\n"
    "--weights and --config count as --sizes custom.\n"
    "Numbers are lists: 8 or 4,8,16 or '64:512:*2' or 128:1024:+128.";
constexpr int64_t kMostRanks = 1'000'000;
constexpr const char* kFooter =
    "Every --benchmark_* flag of Google Benchmark, and its variable BENCHMARK_*, is honoured or\n"
    "refused by name: --benchmark_filter=REGEX acts on the case names, --benchmark_out=FILE "
    "writes\n"
    "JSON, --benchmark_format=console, json, csv, jsonl or md says what standard output has,\n"
    "--benchmark_repetitions, --benchmark_context, ... (docs/report.md: columns of csv and "
    "jsonl)\n\n"
    "Exit status: 0 all measured, or skipped with a reason; 1 some case failed; 2 bad options or\n"
    "files; 130 interrupted.";

// The names of a list, each read by `parse`, whose error gets the option's name in front.
template <typename Parse>
auto parse_each(const char* option, const std::string& text, Parse parse) {
  std::vector<decltype(parse(text))> values;
  for (const auto& name : console::parse_names(option, text))
    values.push_back(console::parse_named(option, name, parse));
  return values;
}

void add_axis_options(CLI::App& app, AxisOptions& axes,
                      const std::vector<std::string>& component_names,
                      const std::vector<Plugin>& plugins) {
  // `take`: gets the option's name and its text.
  const auto add = [&](const char* name, const std::string& help, auto take) {
    app.add_option_function<std::string>(
           name, [name, take](const std::string& text) { take(name, text); }, help)
        ->group("Axes");
  };
  add("--components", "embedding,rms_norm,...; peak for the peaks", [&](auto name, auto& text) {
    axes.components = console::parse_names(name, text, component_names);
  });
  add("--passes", "forward, backward, forward_backward, forward_loss, update, train",
      [&](auto name, auto& text) { axes.passes = parse_each(name, text, parse_pass); });
  add("--variants",
      fmt::format("baseline, fused, optimized, or switches joined by '+', and operators of "
                  "--plugin by their names or all as plugin: {}",
                  fmt::join(all_switches() | std::views::transform(
                                                 [](Switch option) { return to_string(option); }),
                            ", ")),
      [&](auto name, auto& text) {
        axes.variants = parse_each(name, text, [&](const std::string& variant) {
          return Variant::parse(with_operators_of(plugins, variant)).name();
        });
      });
  add("--sizes", "names of problem sizes or published models (docs/models.md), or custom",
      [&](auto name, auto& text) { axes.sizes = console::parse_names(name, text); });
  add("--dtypes", "f32, bf16, f16, amp_bf16, amp_f16", [&](auto name, auto& text) {
    std::vector<std::string> known;
    for (const Dtype dtype : benchmark_dtypes()) known.emplace_back(to_string(dtype));
    for (const auto& word : console::parse_names(name, text, known))
      axes.dtypes.push_back(parse_dtype(word));
  });
  add("--batch", "samples in a step (default: the size's own)",
      [&](auto name, auto& text) { axes.batches = console::parse_numbers(name, text); });
  add("--seq", "tokens in a sample (default: the size's own)",
      [&](auto name, auto& text) { axes.seqs = console::parse_numbers(name, text); });
}

void add_custom_size_options(CLI::App& app, Options& options) {
  for (const console::SizeOption& option : console::kSizeOptions) {
    const auto take = [&options, option](int64_t value) {
      if (!options.custom_size) options.custom_size.emplace();
      *options.custom_size.*option.size = value;
      options.given_sizes.push_back(option);
    };
    app.add_option_function<int64_t>(option.name, take)
        ->transform(console::integer<int64_t>())
        ->group("Size `custom`")
        ->default_str(fmt::format("{}", ModelDimensions().*option.size));
  }
  app.add_option("--config", options.config_place, console::kConfigHelp)->group("Size `custom`");
  app.add_option("--weights", options.weights_folder,
                 "folder with config.json and model.safetensors of a LLaMA model, or of Hugging "
                 "Face's cache: size `custom` "
                 "with its dimensions, all components with its weights (single layers: layer 0's)")
      ->group("Size `custom`");
}

void add_share_options(CLI::App& app, Parallelism& ranks) {
  const auto add = [&](const char* name, int64_t& count, const char* help) {
    app.add_option(name, count, help)
        ->transform(console::integer<int64_t>(1, kMostRanks))
        ->group("One rank's share")
        ->capture_default_str();
  };
  add("--tensor-parallel", ranks.tensor,
      "measure what one of so many ranks computes: heads, feed-forward network and vocabulary "
      "divided; communication is counted (comm_calls, comm_bytes) and not run");
  add("--pipeline-parallel", ranks.pipeline,
      "measure the layers of one of so many stages, as component stage");
}

void add_run_options(CLI::App& app, Options& options) {
  app.add_option("--device", options.device, "auto, cpu, cuda[:N] or hip[:N]")
      ->capture_default_str();
  app.add_option("--blas", options.libraries.blas,
                 "library of a GPU's matrix multiplications: default, cublas or cublaslt; on AMD "
                 "rocblas, hipblaslt or ck")
      ->capture_default_str();
  app.add_option("--sdpa-backend", options.libraries.attention,
                 "what computes sdpa: default, flash, efficient, cudnn or math")
      ->capture_default_str();
  app.add_option("--problem-sizes", options.problem_sizes_file, "JSON file of named sizes");
  app.add_option("--threads", options.threads, "CPU threads (default: libtorch's own choice)")
      ->transform(console::integer(1, console::kMostThreads));
  app.add_option("--seed", options.seed, "seed of weights and inputs")
      ->transform(console::integer<uint64_t>())
      ->capture_default_str();
  app.add_option("--exclude", options.exclude,
                 "leave out cases whose name this expression finds, whatever chose them");
  app.add_option(
         "--hang-limit", options.hang_seconds,
         "seconds that a step of a case (its proof, a repetition) may take; then the "
         "program ends, with what was measured written and the case marked as failed "
         "(default: 1200 more than --max-seconds-per-case on a GPU, else 300 with --plugin)")
      ->check(console::number("positive", [](double value) { return value > 0; }));
  console::add_choice(
      app, "--verify", options.verify,
      {{"before", Verify::before}, {"only", Verify::only}, {"off", Verify::off}},
      "before: compare with the float64 baseline, time, compare with new inputs; only: both "
      "comparisons; off: just time");
  app.add_option_function<std::string>(
      "--memory-limit",
      [&](const std::string& text) {
        options.memory_limit_bytes = console::parse_memory_size("--memory-limit", text);
      },
      "skip cases whose tensors are predicted to need more, e.g. 8GiB (default: what is free)");
  console::add_choice(
      app, "--admit", options.admit, {{"fitting", Admit::fitting}, {"all", Admit::all}},
      "fitting: skip cases predicted not to fit; all: attempt them, each failing where its memory "
      "really ends (with --verify off: no float64 reference fits beside them)");
  app.add_option(
         "--max-seconds-per-case", options.max_seconds_per_case,
         "skip cases predicted to need longer; fewer iterations and repetitions where time, "
         "untimed preparation included, runs out")
      // clocks count in nanoseconds, in 64 bits
      ->check(console::number("positive, and at most 1e+09",
                              [](double value) { return value > 0 && value <= 1e9; }))
      ->capture_default_str();
  app.add_option_function<double>(
         "--precision", [&](double percent) { options.timing.precision = percent / 100; },
         "go on timing a repetition until the 95 % interval of its median, by the medians of ten "
         "batches, is within so many percent, or the case's time is used up (default: 2, for at "
         "most three times --benchmark_min_time)")
      ->check(console::number("above 0 and below 100 percent",
                              [](double value) { return value > 0 && value < 100; }));
  app.add_flag("--cold-cache", options.cold_cache,
               "overwrite the last-level cache before each iteration");
  app.add_option("--journal", options.journal_file,
                 "write each finished case to this file at once");
  app.add_flag("--resume", options.resume,
               "take the cases that --journal FILE already holds from there; options that say how "
               "cases are timed, settings and machine must be the same");
  app.add_flag("--list", options.list, "print the names of the cases");
  app.add_flag("--dry-run", options.dry_run,
               "print costs and predicted memory of every case, and run none; exact figures with "
               "--benchmark_format=json");
  app.add_option_function<std::string>(
      "--columns",
      [&](const std::string& text) {
        options.columns = console::parse_names("--columns", text, column_names());
      },
      "counters that the tables show as well, e.g. TFLOPS,kernels, or all; of the default grid "
      "tables in place of a digest");
  app.add_option("--trace", options.trace_folder,
                 "write a Chrome trace of one untimed iteration of each case into this folder");
  app.add_option(
      "--execution-trace", options.execution_trace_folder,
      "write an execution trace (MLCommons Chakra) of one untimed iteration of each case "
      "into this folder; with --dry-run of its operators without their data, whatever "
      "memory they would need (docs/traces.md)");
  app.add_option(
         "--world", options.world,
         "with --execution-trace and --dry-run: trace the step as one of so many ranks that "
         "share a batch, and with --tensor-parallel the layers, with its collectives")
      ->transform(console::integer<int64_t>(1, kMostRanks));
  app.add_option("--rank", options.rank, "which rank of --world, from 0 on")
      ->transform(console::integer<int64_t>(0, kMostRanks - 1));
  app.add_option(
      "--replay", options.replay_file,
      "time the GEMMs, attention and norms of this trace instead (an execution trace, or "
      "a Chrome trace with shapes), and put them beside their sum (docs/traces.md)");
  console::add_choice<std::optional<LimitAxis>>(
      app, "--find-limit", options.find_limit,
      {{"batch", LimitAxis::batch}, {"seq", LimitAxis::seq}},
      "batch, or seq: print the largest of each case whose predicted memory fits into "
      "--memory-limit, and time none");
  app.add_flag("--confirm", options.confirm,
               "with --find-limit: run the work there, and one step beyond, within the limit");
  app.add_flag("--figures-of-merit", options.figures_of_merit,
               "after the tables a line a figure, FOM <name> = <value> <unit>, and at the end "
               "SUCCESS or FAILED");
  app.add_flag("--describe-device", options.describe_device, "print the device as JSON");
  app.add_flag("--serve", options.serve,
               "stay resident, and open and time cases as requests on standard input say "
               "(docs/serve.md)");
}

void check_values(const CLI::App& app, const Options& options) {
  for (const char* name : {"--journal", "--problem-sizes", "--weights", "--config", "--trace",
                           "--execution-trace", "--replay"}) {
    if (app.count(name) > 0 && app.get_option(name)->as<std::string>().empty()) {
      throw std::invalid_argument(fmt::format("{} '': needs the name of a file or folder", name));
    }
  }
  if (!options.config_place.empty() && !options.weights_folder.empty()) {
    throw std::invalid_argument(fmt::format(
        "--config {}: not with --weights {}, whose own config.json gives the dimensions",
        options.config_place, options.weights_folder));
  }
  if (options.confirm && !options.find_limit)
    throw std::invalid_argument("--confirm: only with --find-limit, whose limits it runs");
  if (options.resume && options.journal_file.empty()) {
    throw std::invalid_argument(
        "--resume: needs --journal FILE, the journal of the run to continue");
  }
}

void check_world(const CLI::App& app, const Options& options) {
  const bool has_world = app.count("--world") > 0;
  if (!has_world && app.count("--rank") == 0) return;
  const auto refuse = [](const std::string& text) { throw std::invalid_argument(text); };
  if (!has_world)
    refuse(fmt::format("--rank {}: needs --world N, the number of ranks", options.rank));
  if (app.count("--rank") == 0) {
    refuse(fmt::format("--world {}: needs --rank K, which of them is traced: 0 to {}",
                       options.world, options.world - 1));
  }
  if (options.rank >= options.world) {
    refuse(fmt::format("--rank {}: must be below --world {}: 0 to {}", options.rank, options.world,
                       options.world - 1));
  }
  if (options.execution_trace_folder.empty() || !options.dry_run) {
    refuse(fmt::format(
        "--world {}: only with --execution-trace DIR and --dry-run: the other ranks do not run",
        options.world));
  }
  const int64_t shares = options.ranks.tensor * options.ranks.pipeline;
  if (options.world % shares != 0) {
    refuse(
        fmt::format("--world {}: must be a multiple of the {} ranks that share the model "
                    "(--tensor-parallel {} x --pipeline-parallel {})",
                    options.world, shares, options.ranks.tensor, options.ranks.pipeline));
  }
}

// Without a rule, an option about results would be ignored without a word where nothing is timed.
void check_modes(const Options& options) {
  using Given = std::pair<bool, std::string>;
  std::vector<Given> modes = {
      {options.serve, "--serve, which answers requests and writes nothing else"},
      {options.verify == Verify::only, "--verify only, which prints a line a case"},
      {options.find_limit.has_value(), "--find-limit, which times nothing"},
      {!options.replay_file.empty() && !options.list, "--replay, which times a trace's operators"},
      {options.list, "--list"},
      {options.dry_run, "--dry-run"},
      {options.describe_device, "--describe-device"}};
  const bool has_format = options.format != "console";
  std::erase_if(modes, [](const Given& mode) { return !mode.first; });
  const auto refuse = [](const std::string& option, const std::string& mode) {
    throw std::invalid_argument(fmt::format("{}: not with {}", option, mode));
  };
  if (options.figures_of_merit && has_format)
    refuse("--figures-of-merit",
           fmt::format("--benchmark_format={}, whose output is one document", options.format));
  if (modes.empty()) return;
  const std::string& mode = modes.front().second;
  if (modes.size() > 1) refuse(modes[1].second.substr(0, modes[1].second.find(',')), mode);
  const bool has_document = options.dry_run || options.find_limit || !options.replay_file.empty();
  if (has_document && has_format && options.format != "json")
    refuse("--benchmark_format=" + options.format,
           mode.substr(0, mode.find(',')) + ", which has console and json");
  // put before a whole command line, to see what it would do
  if (options.list || options.dry_run || options.describe_device) return;
  for (const auto& [is_given, option] : {
           Given{!options.out_file.empty(), "--benchmark_out"},
           Given{!options.journal_file.empty(), "--journal"},
           Given{!options.trace_folder.empty(), "--trace"},
           Given{!options.execution_trace_folder.empty(), "--execution-trace"},
           Given{!options.columns.empty(), "--columns"},
           Given{options.figures_of_merit, "--figures-of-merit"},
           Given{has_format && (options.serve || options.verify == Verify::only),
                 "--benchmark_format"},
       })
    if (is_given) refuse(option, mode);
  if (!options.replay_file.empty() && (options.axes.any() || options.ranks.divides()))
    refuse("an axis (--components, --sizes, ...)", mode + ", whatever a model has");
  // requests say what is timed, and how long
  if (options.serve && !options.benchmark_arguments.empty())
    refuse(options.benchmark_arguments.front(), mode);
}

// `source`: the option that gave the size, with its value.
void refuse_other_dimensions(const Options& options, const std::string& source,
                             const ModelConfig& config) {
  for (const auto& [name, size] : options.given_sizes) {
    const int64_t given = *options.custom_size.*size;
    const int64_t stored = config.dimensions().*size;
    if (given != stored) {
      throw std::invalid_argument(
          fmt::format("{} {}: must be {} or left out with {}, whose config.json says so", name,
                      given, stored, source));
    }
  }
}

void refuse_other_sizes(const Options& options, const ModelConfig& config) {
  for (const auto& name : options.axes.sizes) {
    if (name != "custom") {
      throw std::invalid_argument(fmt::format(
          "--sizes '{}': must be custom or left out with --weights {}, whose config.json gives the "
          "size (hidden_dim {}, n_layers {}, vocab_size {})",
          name, options.weights_folder, config.hidden_dim(), config.n_layers(),
          config.vocab_size()));
    }
  }
}

void open_weights(Options& options) {
  options.weights = console::parse_named(
      "--weights", options.weights_folder,
      [](const auto& folder) { return std::make_shared<const Weights>(folder); });
  const ModelConfig& config = options.weights->config();
  refuse_other_sizes(options, config);
  refuse_other_dimensions(options, "--weights " + options.weights_folder, config);
  options.custom_size = config.dimensions();
  options.config_text = options.weights->config_text();
  options.axes.sizes = {"custom"};
}

void open_config(Options& options) {
  auto& sizes = options.axes.sizes;
  if (!sizes.empty() && std::ranges::find(sizes, "custom") == sizes.end()) {
    throw std::invalid_argument(fmt::format(
        "--config {}: is size custom, which --sizes {} does not name: add custom, or leave one out",
        options.config_place, fmt::join(sizes, ",")));
  }
  ConfigFile file = console::open_config_option(options.config_place);
  refuse_other_dimensions(options, "--config " + options.config_place, file.config);
  options.custom_size = file.config.dimensions();
  options.config_text = std::move(file.text);
  if (sizes.empty()) sizes = {"custom"};
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv,
                                     const std::vector<std::string>& component_names) {
  Options options;
  CLI::App app(kDescription, "tiny_llama_bench");
  app.footer(kFooter);
  // Before the variants, which may name operators of theirs: options are read in this order.
  console::add_plugins(app, options.plugins);
  add_axis_options(app, options.axes, component_names, options.plugins);
  add_custom_size_options(app, options);
  add_share_options(app, options.ranks);
  add_run_options(app, options);

  take_benchmark_environment(options);
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    if (!take_benchmark_flag(argv[i], options)) arguments.emplace_back(argv[i]);
  }
  if (!console::parse_command_line(app, std::move(arguments), ", --benchmark_*"))
    return std::nullopt;
  if (options.custom_size && options.axes.sizes.empty()) options.axes.sizes = {"custom"};
  check_values(app, options);
  check_world(app, options);
  check_modes(options);
  return options;
}

void open_model(Options& options) {
  if (!options.weights_folder.empty()) open_weights(options);
  if (!options.config_place.empty()) open_config(options);
}

}  // namespace tinyllama::harness

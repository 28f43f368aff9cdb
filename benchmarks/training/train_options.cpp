#include "benchmarks/training/train_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/console/size_options.hpp"
#include "benchmarks/training/workshop_options.hpp"
#include "model/weights.hpp"

namespace tinyllama::training {
namespace {

constexpr const char* kDescription =
    "Trains a LLaMA model for some steps and says where their time and memory went.\n"
    "Files and their keys: docs/training_files.md.";
constexpr const char* kFooter =
    "Ctrl-C ends after the current step (several ranks on GPUs: after the next step that\n"
    "--log-interval reports), with the summary and the files written.\n\n"
    "Exit status: 0 done; 1 the loss was not finite, a parameter got no gradient, a rank was lost "
    "or\n"
    "ended with other weights, or --validate-setup found a fault; 2 bad options or files;\n"
    "130 interrupted.";

constexpr int64_t kMemorySteps = 3;
constexpr int64_t kEvalIntervalWithData = 100;

/// An option or a flag; `smallest`: of whole numbers.
struct Option {
  const char* group;
  const char* names;
  std::variant<bool*, std::string*, double*, uint64_t*, int64_t*, std::optional<int>*, Dtype*,
               Variant*, std::vector<Plugin>*>
      value;
  const char* help;
  int64_t smallest = 1;
};

std::vector<Option> table_of(TrainOptions& o, bool& use_amp) {
  ModelDimensions& d = o.dimensions;
  return {
      {"Training", "--batch-size", &o.batch, "samples of a micro-batch"},
      {"Training", "--seq-len", &o.seq, "tokens of a sample", 2},
      {"Training", "--num-steps", &o.num_steps, "training steps"},
      {"Training", "--gradient-accumulation-steps", &o.gradient_accumulation_steps,
       "micro-batches whose gradients make one update"},
      {"Output", "--log-interval", &o.log_interval, "a line every so many steps"},
      {"Training", "--eval-interval", &o.eval_interval,
       "evaluation loss every so many steps; 0: never (default: 100 with --data, else 0)", 0},
      {"Training", "--eval-iters", &o.eval_iters, "batches of an evaluation"},
      {"Model", "--hidden-dim", &d.hidden_dim, "model dimension D"},
      {"Model", "--n-layers,--num-layers", &d.n_layers, "transformer blocks L"},
      {"Model", "--n-heads,--num-heads", &d.n_heads, "query heads H"},
      {"Model", "--n-kv-heads", &d.n_kv_heads, "key-value heads"},
      {"Model", "--intermediate-dim", &d.intermediate_dim, "width of the FFN"},
      {"Model", "--vocab-size", &d.vocab_size, "vocabulary V"},
      {"Profilers", "--profile-steps", &o.profile_steps,
       "the operator profiler records so many steps after its first (the fifth, see "
       "--warmup-steps)",
       0},
      {"Profilers", "--flops-profile-step", &o.flops_profile_step,
       "step whose components the FLOPS profiler times"},
      {"Training", "--learning-rate", &o.learning_rate, "of AdamW"},
      {"Training", "--data", &o.data_file,
       "text file to train on, byte by byte (default: synthetic tokens, the same batch in every "
       "step)"},
      {"Training", "--seed", &o.seed, "of weights and tokens"},
      {"Training", "--deterministic", &o.deterministic,
       "bit-identical losses in every run with this seed"},
      {"Training", "--device", &o.device, "auto, cpu, cuda[:N] or hip[:N]"},
      {"Training", "--threads", &o.threads, "CPU threads (default: libtorch's own choice)"},
      {"Training", "--dtype", &o.dtype, "f32, bf16, amp_bf16 or amp_f16"},
      {"Training", "--use-amp", &use_amp,
       "mixed precision: --dtype amp_bf16 (amp_f16 where --dtype says so)"},
      {"Model", "--plugin", &o.plugins, ""},
      {"Model", "--variant", &o.variant, ""},
      {"Model", "--size", &o.size,
       "problem size or published model (docs/models.md); gives batch and sequence their defaults"},
      {"Model", "--config", &o.config_place, console::kConfigHelp},
      {"Model", "--weights", &o.weights_folder,
       "folder with config.json and model.safetensors to start from"},
      {"Output", "--save-weights", &o.save_weights_folder,
       "folder that gets the trained weights, as LlamaForCausalLM reads them"},
      {"Output", "--output-dir", &o.output_folder,
       "folder of performance_summary.json (default: that of the profiles, where there are some)"},
      {"Output", "--validate-setup", &o.validate_setup,
       "check device, libtorch, memory, runtime and write access, and train nothing"},
      {"Profilers", "--enable-pytorch-profiler", &o.profile_pytorch,
       "operator profiler: Chrome trace, TensorBoard files, operator table"},
      {"Profilers", "--profile-memory,--enable-memory-profiling", &o.profile_memory,
       "every allocation of some steps: peaks, largest tensors, timeline"},
      {"Profilers", "--profile-operators", &o.profile_operators,
       "input shapes in trace and operator table"},
      {"Profilers", "--profile-stacks", &o.profile_stacks,
       "the ranges and operators around each operator in the table"},
      {"Profilers", "--enable-deepspeed-flops,--enable-flops-profiler", &o.profile_flops,
       "FLOPs, time and intensity of each component"},
      {"Profilers", "--emit-ranges", &o.emit_ranges,
       "pass components and phases on to rocprofv3 (roctx), Nsight (NVTX) or VTune (ITT)"},
      {"Profilers", "--profile-dir", &o.profile_folder, "folder of the profilers' files"},
  };
}

void add(CLI::App& app, const Option& option, const std::vector<Plugin>& plugins) {
  const auto add_value = [&]<typename Value>(Value* value) {
    if constexpr (std::is_same_v<Value, bool>) {
      app.add_flag(option.names, *value, option.help)->group(option.group);
    } else if constexpr (std::is_same_v<Value, Dtype>) {
      console::add_dtype(app, *value, option.help)->group(option.group);
    } else if constexpr (std::is_same_v<Value, std::vector<Plugin>>) {
      console::add_plugins(app, *value)->group(option.group);
    } else if constexpr (std::is_same_v<Value, Variant>) {
      console::add_variant(app, *value, plugins)->group(option.group);
    } else {
      auto* const added = app.add_option(option.names, *value, option.help)->group(option.group);
      if constexpr (std::is_same_v<Value, double>) {
        added->check(console::number("a positive number", [](double number) {
          return number > 0 && std::isfinite(number);
        }));
      }
      if constexpr (std::is_same_v<Value, uint64_t>) added->transform(console::integer<uint64_t>());
      if constexpr (std::is_same_v<Value, int64_t>)
        added->transform(console::integer(option.smallest));
      if constexpr (std::is_same_v<Value, std::optional<int>>) {
        added->transform(console::integer(1, console::kMostThreads));
      } else {
        added->capture_default_str();
      }
    }
  };
  std::visit(add_value, option.value);
}

// The dtype that trains, with --use-amp or without.
Dtype chosen_dtype(const CLI::App& app, Dtype named, bool use_amp) {
  if (named == Dtype::f16) {
    throw std::invalid_argument(
        "--dtype f16: cannot train: in float16 AdamW's second moments and its eps of 1e-8 round to "
        "0, and the first update is infinite; take amp_f16, whose weights are float32");
  }
  if (!use_amp || uses_autocast(named)) return named;
  if (app.count("--dtype") > 0 && named != Dtype::f32) {
    throw std::invalid_argument(fmt::format(
        "--use-amp with --dtype {}: autocast keeps float32 weights; leave --dtype out, or say "
        "amp_bf16 or amp_f16",
        to_string(named)));
  }
  return Dtype::amp_bf16;
}

void refuse_two_configs(const TrainOptions& options) {
  if (options.config_place.empty() || options.weights_folder.empty()) return;
  throw std::invalid_argument(
      fmt::format("--config {}: not with --weights {}, whose own config.json gives the dimensions",
                  options.config_place, options.weights_folder));
}

void apply_weights(const CLI::App& app, TrainOptions& options) {
  if (options.weights_folder.empty()) return;
  distributed::refuse_other_sizes(app, "--weights " + options.weights_folder);
  options.dimensions = console::parse_named("--weights", options.weights_folder,
                                            [](const auto& folder) { return Weights(folder); })
                           .config()
                           .dimensions();
  options.size = "custom";
}

void check(TrainOptions& options) {
  static_cast<void>(ModelConfig(options.dimensions));
  distributed::check_data_parallel_options(options, /*ranks=*/1);
  for (const auto& [option, is_given] :
       {std::pair{"--profile-operators", options.profile_operators},
        std::pair{"--profile-stacks", options.profile_stacks},
        std::pair{"--profile-attention-only", options.profile_attention_only}}) {
    if (!is_given || options.profile_pytorch) continue;
    throw std::invalid_argument(
        fmt::format("{}: refines the operator profiler; add --enable-pytorch-profiler", option));
  }
  if (options.any_profiler() && options.profile_folder.empty())
    throw std::invalid_argument("--profile-dir '': must name a folder");
  if (options.profile_memory && options.memory_steps().empty()) {
    throw std::invalid_argument(fmt::format(
        "--profile-memory: all {} steps belong to other profilers, which cannot run beside it; "
        "raise --num-steps",
        options.num_steps));
  }
}

}  // namespace

std::filesystem::path TrainOptions::folder() const {
  return any_profiler() ? profile_folder : output_folder;
}

StepRange TrainOptions::operator_steps() const {
  if (!profile_pytorch) return {};
  const int64_t first = std::min(warmup_steps + 1, num_steps);
  return {first, first + std::min(profile_steps, num_steps - first)};
}

StepRange TrainOptions::flops_steps() const {
  if (!profile_flops) return {};
  const int64_t step = std::min(flops_profile_step, num_steps);
  return {step, step};
}

StepRange TrainOptions::memory_steps() const {
  if (!profile_memory) return {};
  const StepRange others[] = {operator_steps(), flops_steps()};
  const auto taken_by = [&](int64_t step) {
    return std::ranges::find_if(others, [&](const auto& range) { return range.contains(step); });
  };
  const auto taken = [&](int64_t step) { return taken_by(step) != std::end(others); };
  // The first step allocates what later ones find in caches; it serves only where there is no
  // other.
  for (int64_t first = 2; first <= num_steps;) {
    if (const auto* other = taken_by(first); other != std::end(others)) {
      if (other->last == num_steps) break;
      first = other->last + 1;
      continue;
    }
    int64_t last = first;
    while (last < num_steps && last - first + 1 < kMemorySteps && !taken(last + 1)) ++last;
    return {first, last};
  }
  return taken(1) ? StepRange{} : StepRange{1, 1};
}

std::optional<TrainOptions> parse_train_options(int argc, const char* const* argv,
                                                const console::SizeFiles& sizes) {
  TrainOptions options;
  bool use_amp = false;
  WorkshopOptions workshop;
  CLI::App app(kDescription, "tiny_llama_train");
  app.footer(kFooter);
  for (const Option& option : table_of(options, use_amp)) add(app, option, options.plugins);
  distributed::add_data_parallel_options(
      app, options, "Data-parallel (started by torchrun, mpirun or srun)",
      "sum gradients after the backward, not during it",
      "what ranks share beside samples: ddp (nothing), zero1 (optimizer's state), zero3 (also "
      "parameters and gradients) or tensor (layers, of the same samples)");
  workshop.add_to(app, options);
  if (!console::parse_command_line(app, {argv + 1, argv + argc})) return std::nullopt;
  options.dtype = chosen_dtype(app, options.dtype, use_amp);
  workshop.apply(app, use_amp, options);
  refuse_two_configs(options);
  distributed::apply_size(app, options, "--batch-size", "--seq-len", sizes);
  distributed::apply_share(app, options);
  apply_weights(app, options);
  if (!options.data_file.empty() && app.count("--eval-interval") == 0)
    options.eval_interval = kEvalIntervalWithData;
  check(options);
  return options;
}

}  // namespace tinyllama::training

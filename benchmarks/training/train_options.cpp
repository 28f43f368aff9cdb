#include "benchmarks/training/train_options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/console/size_options.hpp"
#include "model/weights.hpp"

namespace tinyllama::training {
namespace {

constexpr const char* kDescription =
    "Trains a LLaMA model for some steps and says where their time and memory went.\n"
    "Files and their keys: docs/training_files.md.";
constexpr const char* kFooter =
    "Ctrl-C ends after the current step, with the summary and the files written.\n\n"
    "Exit status: 0 done; 1 the loss was not finite, or --validate-setup found a fault; 2 bad "
    "options or files;\n"
    "130 interrupted.";

constexpr int64_t kProfileFirstStep = 5;
constexpr int64_t kMemorySteps = 3;
constexpr int64_t kEvalIntervalWithData = 100;
constexpr int64_t kByteValues = 256;

// Texts that become checked values once CLI11 has split the command line.
struct RawOptions {
  std::string dtype = "f32";
  std::string variant = "baseline";
  bool use_amp = false;
};

struct IntegerOption {
  const char* names;
  int64_t* value;
  const char* help;
  int64_t smallest;
  const char* group;
};

std::vector<IntegerOption> integer_options(TrainOptions& options) {
  ModelDimensions& d = options.dimensions;
  return {
      {"--batch-size", &options.batch_size, "samples of a micro-batch", 1, "Training"},
      {"--seq-len", &options.seq_len, "tokens of a sample", 2, "Training"},
      {"--num-steps", &options.num_steps, "training steps", 1, "Training"},
      {"--gradient-accumulation-steps", &options.gradient_accumulation_steps,
       "micro-batches whose gradients make one update", 1, "Training"},
      {"--log-interval", &options.log_interval, "a line every so many steps", 1, "Output"},
      {"--eval-interval", &options.eval_interval,
       "evaluation loss every so many steps; 0: never (default: 100 with --data, else 0)", 0,
       "Training"},
      {"--eval-iters", &options.eval_iters, "batches of an evaluation", 1, "Training"},
      {"--hidden-dim", &d.hidden_dim, "model dimension D", 1, "Model"},
      {"--n-layers,--num-layers", &d.n_layers, "transformer blocks L", 1, "Model"},
      {"--n-heads,--num-heads", &d.n_heads, "query heads H", 1, "Model"},
      {"--n-kv-heads", &d.n_kv_heads, "key-value heads", 1, "Model"},
      {"--intermediate-dim", &d.intermediate_dim, "width of the FFN", 1, "Model"},
      {"--vocab-size", &d.vocab_size, "vocabulary V", 1, "Model"},
      {"--profile-steps", &options.profile_steps,
       "the operator profiler records steps 5 to 5 + this", 0, "Profilers"},
      {"--flops-profile-step", &options.flops_profile_step,
       "step whose components the FLOPS profiler times", 1, "Profilers"},
  };
}

// An integer of at least `smallest`; CLI11 puts the option's name in front of what is said.
CLI::Validator at_least(int64_t smallest) {
  return CLI::Validator(
      [smallest](std::string& text) -> std::string {
        int64_t value = 0;
        if (!CLI::detail::lexical_cast(text, value) || value >= smallest) return {};
        return fmt::format("'{}' must be {} or more", text, smallest);
      },
      "");
}

void add_training_options(CLI::App& app, TrainOptions& options, RawOptions& raw) {
  app.add_option("--learning-rate", options.learning_rate, "of AdamW")
      ->check(console::number())
      ->group("Training")
      ->capture_default_str();
  app.add_option("--data", options.data_file,
                 "text file to train on, byte by byte (default: synthetic tokens, the same batch "
                 "in every step)")
      ->group("Training");
  app.add_option("--seed", options.seed, "of weights and tokens")
      ->check(console::integer<uint64_t>())
      ->group("Training")
      ->capture_default_str();
  app.add_flag("--deterministic", options.deterministic,
               "bit-identical losses in every run with this seed")
      ->group("Training");
  app.add_option("--device", options.device, "auto, cpu, cuda[:N] or hip[:N]")
      ->group("Training")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "CPU threads (default: libtorch's own choice)")
      ->check(console::integer<int>())
      ->group("Training");
  app.add_option("--dtype", raw.dtype, "f32, bf16, f16, amp_bf16 or amp_f16")
      ->group("Training")
      ->capture_default_str();
  app.add_flag("--use-amp", raw.use_amp,
               "mixed precision: --dtype amp_bf16 (amp_f16 where --dtype says so)")
      ->group("Training");
  app.add_option("--variant", raw.variant,
                 "baseline, fused, optimized, or switches joined by '+' (as in tiny_llama_bench)")
      ->group("Model")
      ->capture_default_str();
  app.add_option("--size", options.size, "problem size; gives batch and sequence their defaults")
      ->group("Model")
      ->capture_default_str();
  app.add_option("--weights", options.weights_folder,
                 "folder with config.json and model.safetensors to start from")
      ->group("Model");
  app.add_option("--save-weights", options.save_weights_folder,
                 "folder that gets the trained weights, as LlamaForCausalLM reads them")
      ->group("Output");
  app.add_option("--output-dir", options.output_folder, "folder of performance_summary.json")
      ->group("Output");
  app.add_flag("--validate-setup", options.validate_setup,
               "check device, libtorch, memory, runtime and write access, and train nothing")
      ->group("Output");
}

void add_profiler_options(CLI::App& app, TrainOptions& options) {
  const char* const group = "Profilers";
  app.add_flag("--enable-pytorch-profiler", options.profile_pytorch,
               "operator profiler: Chrome trace, TensorBoard files, operator table")
      ->group(group);
  app.add_flag("--profile-memory", options.profile_memory,
               "every allocation of some steps: peaks, largest tensors, timeline")
      ->group(group);
  app.add_flag("--profile-operators", options.profile_operators,
               "input shapes in trace and operator table")
      ->group(group);
  app.add_flag("--profile-stacks", options.profile_stacks,
               "the ranges and operators around each operator in the table")
      ->group(group);
  app.add_flag("--enable-deepspeed-flops,--enable-flops-profiler", options.profile_flops,
               "FLOPs, time and intensity of each component")
      ->group(group);
  app.add_flag("--emit-ranges", options.emit_ranges,
               "pass components and phases on to rocprofv3 (roctx), Nsight (NVTX) or VTune (ITT)")
      ->group(group);
  app.add_option("--profile-dir", options.profile_folder, "folder of the profilers' files")
      ->group(group)
      ->capture_default_str();
}

Dtype chosen_dtype(const CLI::App& app, const RawOptions& raw) {
  const Dtype dtype = console::parse_named("--dtype", raw.dtype, parse_dtype);
  const auto allowed = benchmark_dtypes();
  if (std::find(allowed.begin(), allowed.end(), dtype) == allowed.end()) {
    throw std::invalid_argument(
        fmt::format("--dtype '{}': must be one of f32, bf16, f16, amp_bf16, amp_f16", raw.dtype));
  }
  if (!raw.use_amp || uses_autocast(dtype)) return dtype;
  if (app.count("--dtype") > 0 && dtype != Dtype::f32) {
    throw std::invalid_argument(fmt::format(
        "--use-amp with --dtype {}: autocast keeps float32 weights; leave --dtype out, or say "
        "amp_bf16 or amp_f16",
        raw.dtype));
  }
  return Dtype::amp_bf16;
}

// The size's dimensions, batch and sequence, where the user named none of their own.
void apply_size(const CLI::App& app, TrainOptions& options, const std::filesystem::path& file) {
  const auto chosen = console::choose_size(app, options.size, options.dimensions, file);
  options.size = chosen.name;
  options.dimensions = chosen.dimensions;
  if (app.count("--batch-size") == 0) options.batch_size = chosen.batch;
  if (app.count("--seq-len") == 0) options.seq_len = chosen.seq;
}

void apply_weights(const CLI::App& app, TrainOptions& options) {
  if (options.weights_folder.empty()) return;
  std::vector<const char*> names = {"--size"};
  for (const auto& option : console::kSizeOptions) names.push_back(option.name);
  for (const char* name : names) {
    if (app.count(name) == 0) continue;
    throw std::invalid_argument(fmt::format(
        "{}: must be left out with --weights {}, whose config.json gives the dimensions", name,
        options.weights_folder));
  }
  options.dimensions = console::parse_named("--weights", options.weights_folder,
                                            [](const auto& folder) { return Weights(folder); })
                           .config()
                           .dimensions();
  options.size = "custom";
}

void check(TrainOptions& options) {
  static_cast<void>(ModelConfig(options.dimensions));
  if (!(options.learning_rate > 0) || !std::isfinite(options.learning_rate)) {
    throw std::invalid_argument(
        fmt::format("--learning-rate {}: must be a positive number", options.learning_rate));
  }
  distributed::check_data_parallel_options(options, options.dtype);
  if (options.threads && *options.threads < 1) {
    throw std::invalid_argument(fmt::format("--threads {}: must be 1 or more", *options.threads));
  }
  if (!options.data_file.empty() && options.dimensions.vocab_size < kByteValues) {
    throw std::invalid_argument(
        fmt::format("--vocab-size {}: must be {} or more with --data, whose tokens are bytes",
                    options.dimensions.vocab_size, kByteValues));
  }
  if ((options.profile_operators || options.profile_stacks) && !options.profile_pytorch) {
    throw std::invalid_argument(
        fmt::format("{}: refines the operator profiler; add --enable-pytorch-profiler",
                    options.profile_operators ? "--profile-operators" : "--profile-stacks"));
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
  const int64_t first = std::min(kProfileFirstStep, num_steps);
  return {first, std::min(first + profile_steps, num_steps)};
}

StepRange TrainOptions::flops_steps() const {
  if (!profile_flops) return {};
  const int64_t step = std::min(flops_profile_step, num_steps);
  return {step, step};
}

StepRange TrainOptions::memory_steps() const {
  if (!profile_memory) return {};
  const auto taken = [&](int64_t step) {
    return operator_steps().contains(step) || flops_steps().contains(step);
  };
  // The first step allocates what later ones find in caches; it serves only where there is no
  // other.
  for (int64_t first = 2; first <= num_steps; ++first) {
    if (taken(first)) continue;
    int64_t last = first;
    while (last < num_steps && last - first + 1 < kMemorySteps && !taken(last + 1)) ++last;
    return {first, last};
  }
  return taken(1) ? StepRange{} : StepRange{1, 1};
}

Workload TrainOptions::workload() const {
  return {ModelConfig(dimensions), variant, dtype, batch_size, seq_len};
}

std::optional<TrainOptions> parse_train_options(int argc, const char* const* argv,
                                                const std::filesystem::path& problem_sizes) {
  TrainOptions options;
  RawOptions raw;
  CLI::App app(kDescription, "tiny_llama_train");
  app.footer(kFooter);
  for (const IntegerOption& option : integer_options(options)) {
    app.add_option(option.names, *option.value, option.help)
        ->check(console::integer<int64_t>())
        ->check(at_least(option.smallest))
        ->group(option.group)
        ->capture_default_str();
  }
  add_training_options(app, options, raw);
  add_profiler_options(app, options);
  distributed::add_data_parallel_options(
      app, options, "Data-parallel (started by torchrun, mpirun or srun)",
      "sum gradients after the backward, not during it",
      "each rank keeps and updates a share of the optimizer's state");
  if (!console::parse_command_line(app, {argv + 1, argv + argc})) return std::nullopt;
  options.dtype = chosen_dtype(app, raw);
  options.variant = console::parse_named("--variant", raw.variant, Variant::parse);
  apply_size(app, options, problem_sizes);
  apply_weights(app, options);
  if (!options.data_file.empty() && app.count("--eval-interval") == 0)
    options.eval_interval = kEvalIntervalWithData;
  check(options);
  return options;
}

}  // namespace tinyllama::training

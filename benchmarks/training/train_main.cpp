// tiny_llama_train: options -> one run of training -> its files.
#include <ATen/Context.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/console/progress.hpp"
#include "benchmarks/distributed/launch.hpp"
#include "benchmarks/instruments/bring_up.hpp"
#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/system_sampler.hpp"
#include "benchmarks/training/flops_analysis.hpp"
#include "benchmarks/training/memory_analysis.hpp"
#include "benchmarks/training/run_report.hpp"
#include "benchmarks/training/tensorboard_events.hpp"
#include "benchmarks/training/train_options.hpp"
#include "benchmarks/training/trainer.hpp"
#include "benchmarks/training/validate_setup.hpp"
#include "core/data_folder.hpp"
#include "core/file_io.hpp"
#include "model/memory_prediction.hpp"
#include "model/variant.hpp"
#include "model/weights.hpp"

namespace tinyllama::training {
namespace {

using console::ExitCode;
using distributed::Share;

std::filesystem::path fixtures() {
  return data_folder() / "fixtures";
}

constexpr const char* kSummaryFile = "performance_summary.json";

/// A folder that a run writes to: tried before the run, and written to as long as it can be.
class ResultFolder {
 public:
  /// An empty path stands for no folder. Throws what check_output_folder does.
  ResultFolder(const char* option, std::filesystem::path path) : path_(std::move(path)) {
    check_output_folder(option, path_);
  }

  bool exists() const { return !path_.empty(); }
  const std::filesystem::path& path() const { return path_; }
  const std::vector<std::string>& files() const { return files_; }
  /// Remembers a file that is written here, once.
  void add(const std::string& name) {
    if (std::ranges::find(files_, name) == files_.end()) files_.push_back(name);
  }
  /// Writes a file, which may lie in a folder below, and remembers its name. Throws
  /// std::runtime_error where either cannot be made.
  void write(const std::string& name, const std::string& text) {
    const auto file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    write_file_atomically(file, text);
    add(name);
  }

 private:
  std::filesystem::path path_;
  std::vector<std::string> files_;
};

/// Runs every piece of work, whether or not one before it failed, and then throws the first error.
/// One full disk must not keep the results from being written to another.
class WriteAttempts {
 public:
  void attempt(const std::function<void()>& work) {
    try {
      work();
    } catch (...) {
      if (!first_) first_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

/// One run, from the banner to the last file: trains and writes what the options ask for.
class TrainRun {
 public:
  /// `group`: null for a process alone. Throws std::invalid_argument for data, weights and folders
  /// that will not do, before the first step.
  TrainRun(const TrainOptions& options, const instruments::Device& device,
           distributed::ProcessGroup* group)
      : options_(options),
        device_(device),
        group_(group),
        profiles_("--profile-dir", options.any_profiler() ? options.profile_folder : ""),
        output_("--output-dir", options.output_folder),
        weights_("--save-weights", options.save_weights_folder),
        data_(open_data()),
        compared_(options.compared_summary.empty()
                      ? Json(nullptr)
                      : read_compared_summary(options.compared_summary)),
        progress_("step", options.rank == 0) {
    refuse_for_memory();
    // A profiler has a ComponentTracker of its own.
    if (options.emit_ranges) ranges_.emplace(!options.any_profiler());
    if (options.profile_pytorch || options.profile_flops)
      operators_.emplace(options, device, profiles_.path());
    if (options.profile_pytorch) events_.emplace(profiles_.path());
  }

  TrainRun(const TrainRun&) = delete;
  TrainRun& operator=(const TrainRun&) = delete;
  ~TrainRun() {
    if (group_) group_->on_loss({});
  }

  /// Throws std::runtime_error where a file cannot be written, after the summary was printed and
  /// the others were written; RankLostError where a rank is lost, after what ended before was
  /// reported.
  ExitCode run(const std::vector<std::string>& command) {
    console::install_interrupt_handler();
    document_ = run_header(options_, device_, command, data_->name());
    if (group_) {
      document_["distributed"] = distributed_json(options_, *group_);
      group_->on_loss([this](const std::string& what) { keep_steps(what); });
    }
    std::cout << banner(options_, device_, data_->name()) << "\nInitializing model and optimizer..."
              << std::endl;
    ModelState state(options_, device_.torch(), [&](const NamedTensors& parameters) {
      const std::string different = differing_ranks("initial weights", parameters);
      if (!different.empty()) throw std::invalid_argument(fmt::format("--weights: {}", different));
    });
    if (!state.config_text.empty() && options_.rank == 0) {
      if (!state.not_read.empty())
        fmt::print(stderr, "tiny_llama_train: note: {}\n", state.not_read);
      const std::string warning = longer_than_made_for(state.config_text, options_.seq);
      if (!warning.empty()) fmt::print(stderr, "tiny_llama_train: warning: {}\n", warning);
    }
    attempts_.attempt([&] { train(state); });
    attempts_.attempt([&] { compare_weights(); });
    // Nothing to tell, and an earlier run's files are worth more.
    if (steps_.empty()) {
      attempts_.rethrow();
      return ExitCode::interrupted;
    }
    summarize_run();
    std::cout << summary_text(document_) << std::flush;
    if (!compared_.is_null())
      std::cout << comparison_text(document_, compared_, options_.compared_summary) << std::flush;
    write_files(state);
    attempts_.rethrow();
    if (weights_differ_) return ExitCode::failed;
    if (!steps_.empty() && !std::isfinite(steps_.back().loss)) return ExitCode::failed;
    return console::interrupted() ? ExitCode::interrupted : ExitCode::ok;
  }

 private:
  void refuse_for_memory() const {
    const distributed::LaunchEnvironment where =
        group_ ? group_->where() : distributed::LaunchEnvironment();
    const int64_t parameters = count_parameters(ModelConfig(options_.dimensions));
    const int64_t bytes =
        distributed::predict_rank_bytes(options_, options_.ranks, device_.torch().type());
    distributed::refuse_for_memory(
        where, device_, static_cast<double>(bytes) * where.ranks_sharing(device_),
        fmt::format("--batch-size {} --seq-len {}: a step of {} parameters", options_.batch,
                    options_.seq, parameters),
        "lower one of them, take a smaller model, or use --variant optimized, checkpoint or a "
        "narrower --dtype");
  }

  std::unique_ptr<TokenData> open_data() const {
    const ModelConfig config(options_.dimensions);
    const BatchOptions batch{options_.batch, options_.seq, options_.seed, device_.torch()};
    if (options_.data_file.empty()) return synthetic_data(config, batch);
    return console::parse_named("--data", options_.data_file, [&](const auto& file) {
      return text_file_data(file, config, batch);
    });
  }

  void train(ModelState& state) {
    Trainer trainer(options_, device_, state, *data_, operators_ ? &*operators_ : nullptr, group_);
    trainer.on_step([&](const StepRecord& step) { keep_step(step); });
    instruments::SystemSampler sampler(instruments::system_reader(device_));
    std::cout << "\nStarting training..." << std::endl;
    progress_.expect("step", 1, options_.num_steps);
    progress_.start("training");
    attempts_.attempt([&] {
      trainer.run();
      trained_ = trainer.whole_parameters();
    });
    progress_.clear();
    recording_ = std::move(trainer.memory_recording());
    document_["device_sampling"] = sampling_json(sampler.stop());
  }

  void keep_step(const StepRecord& step) {
    steps_.push_back(step);
    progress_.finish("step");
    const bool last = step.step == options_.num_steps || !std::isfinite(step.loss);
    if (step.step % options_.log_interval == 0 || step.step == 1 || last) {
      progress_.clear();
      std::cout << step_line(step, options_.num_steps) << std::flush;
      if (!last) progress_.start("training");
    }
    write_event(step);
    if (!std::isfinite(step.loss)) {
      progress_.say(
          fmt::format("tiny_llama_train: step {}: the loss is {}: training stopped; lower "
                      "--learning-rate {:g}, or use a wider --dtype",
                      step.step, step.loss, options_.learning_rate));
    }
  }

  // Empty where all ranks have the same weights, to the bit; else who differs. `when`: a name that
  // no other call has.
  std::string differing_ranks(const std::string& when, const NamedTensors& parameters) {
    return group_ ? group_->differing_ranks(when, parameters) : std::string();
  }

  // What data-parallel training promises, checked where it can be. A file that could not be written
  // is one rank's own trouble, and keeps the others waiting no less.
  void compare_weights() {
    if (!group_ || trained_.empty()) return;
    const std::string different = differing_ranks("trained weights", trained_);
    document_["distributed"]["weights_are_identical"] = different.empty();
    weights_differ_ = !different.empty();
    if (weights_differ_) {
      progress_.say(
          fmt::format("tiny_llama_train: wrong result: after the last step {}", different));
    }
  }

  void write_event(const StepRecord& step) {
    if (!events_) return;
    const auto samples = static_cast<double>(options_.samples_per_step());
    try {
      events_->write(step.step, {{"loss", step.loss},
                                 {"evaluation_loss", step.evaluation_loss},
                                 {"step_time_seconds", step.times.total()},
                                 {"samples_per_second", samples / step.times.total()},
                                 {"peak_memory_MiB",
                                  static_cast<double>(step.peak_memory_bytes) / 1048576.0}});
    } catch (...) {
      // A full disk ends the curves, not the training.
      attempts_.attempt([] { throw; });
      events_.reset();
    }
  }

  // A launcher may end this process before it has found out who is lost.
  void keep_steps(const std::string& what) {
    progress_.clear();
    fmt::print(stderr, "tiny_llama_train: {}\n", what);
    std::fflush(stderr);
    if (steps_.empty()) return;
    try {
      summarize_steps();
      if (output_.exists()) write_summary(output_);
    } catch (const std::exception&) {
      // It is written once more at the end, which then says why it cannot be.
    }
  }

  void summarize_steps() {
    const int64_t samples = options_.samples_per_step();
    const bool whole = options_.variant.has(Switch::graph);
    document_["steps"] = steps_json(steps_, whole);
    document_["summary"] = summarize(steps_, samples, samples * options_.seq, whole);
    document_["summary"]["interrupted"] = console::interrupted();
    for (const char* part : {"operators", "memory", "flops"}) document_[part] = nullptr;
  }

  void summarize_run() {
    summarize_steps();
    if (operators_) document_["operators"] = operators_->to_json();
    if (recording_) document_["memory"] = analyze_memory(*recording_, workload(), resident_before_);
    attempts_.attempt([&] { analyze_flops_of_step(); });
  }

  void analyze_flops_of_step() {
    const auto times = operators_ ? operators_->flops_components() : std::nullopt;
    if (!times || console::interrupted()) return;
    std::cout << "\nMeasuring the peaks of this device..." << std::endl;
    const Workload micro_batch = workload();
    const FlopsMeasurement measurement{options_.flops_steps().first, plain_step_seconds(steps_),
                                       options_.gradient_accumulation_steps, *times,
                                       options_.samples_per_step()};
    document_["flops"] = analyze_flops(
        micro_batch, measurement,
        measure_peaks(device_, micro_batch, measurement, fixtures() / "device_peaks.json"));
  }

  Workload workload() const {
    Workload workload = options_.workload();
    workload.device = device_.torch().type();
    return workload;
  }

  void write_profiles() {
    attempts_.attempt([&] {
      if (!operators_) return;
      for (const auto& name : operators_->finish()) profiles_.add(name);
    });
    attempts_.attempt([&] {
      if (events_) profiles_.add(events_->path().filename().string());
    });
    attempts_.attempt([&] {
      if (!recording_) return;
      profiles_.write("memory_timeline.json", memory_timeline_json(*recording_));
    });
    for (const auto& [part, analysis] : document_.at("flops").items()) {
      attempts_.attempt(
          [&] { profiles_.write(fmt::format("flops_analysis/{}.json", part), analysis.dump(2)); });
    }
  }

  // --profile-dir and --output-dir may be one.
  bool is_same_folder() const {
    std::error_code unknown;
    return profiles_.exists() &&
           std::filesystem::equivalent(profiles_.path(), output_.path(), unknown);
  }

  void write_summary(ResultFolder& folder) {
    std::vector<std::string> names = folder.files();
    if (std::find(names.begin(), names.end(), kSummaryFile) == names.end())
      names.push_back(kSummaryFile);
    document_["files"] = names;
    folder.write(kSummaryFile,
                 document_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }

  void write_files(ModelState& state) {
    if (profiles_.exists()) write_profiles();
    for (ResultFolder* folder : {&profiles_, &output_}) {
      attempts_.attempt([&] {
        if (!folder->exists() || (folder == &output_ && is_same_folder())) return;
        write_summary(*folder);
      });
    }
    attempts_.attempt([&] {
      // A rank that was lost leaves weights of gradients that not all ranks are in.
      const NamedTensors& parameters = group_ ? trained_ : state.model.parameters();
      if (weights_.exists() && !parameters.empty()) {
        save_weights(weights_.path(), ModelConfig(options_.dimensions), parameters,
                     state.config_text);
      }
    });
    if (options_.any_profiler()) std::cout << "\nProfiling complete!\n";
    std::cout << files_text(profiles_.path().string(), profiles_.files())
              << files_text(output_.path().string(), output_.files()) << std::flush;
  }

  const TrainOptions& options_;
  instruments::Device device_;
  distributed::ProcessGroup* group_;
  NamedTensors trained_;  // whole; empty before the training has ended
  bool weights_differ_ = false;
  ResultFolder profiles_;
  ResultFolder output_;
  ResultFolder weights_;
  std::unique_ptr<TokenData> data_;
  Json compared_;  ///< of --compare-with-v1; else null
  console::Progress progress_;
  std::optional<RangeEmitter> ranges_;
  std::optional<OperatorRecorder> operators_;
  std::optional<TensorboardEvents> events_;
  std::optional<MemoryRecording> recording_;
  std::optional<int64_t> resident_before_ = instruments::host_machine::resident_bytes();
  StepRecords steps_;
  WriteAttempts attempts_;
  Json document_;
};

// What --disable-... takes from `optimized` once that is chosen.
Variant without_left_out(const TrainOptions& options, Variant variant) {
  for (const Switch one : options.left_out)
    if (variant.has(one)) variant = variant.without(one);
  return variant;
}

void make_deterministic() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // cuBLAS wants it said
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

// A captured step is replayed whole: nobody sees its parts. What `optimized` chose may be left out;
// what the user named is refused.
void refuse_for_graph(TrainOptions& options) {
  if (!options.variant.has(Switch::graph)) return;
  const char* const in_the_way = options.gradient_accumulation_steps > 1
                                     ? "--gradient-accumulation-steps"
                                 : options.profile_memory ? "--profile-memory"
                                 : options.profile_flops  ? "--enable-deepspeed-flops"
                                                          : nullptr;
  if (in_the_way == nullptr) return;
  if (options.variant.is_optimized()) {
    options.variant = options.variant.without(Switch::graph).named_optimized();
    return;
  }
  throw std::invalid_argument(
      fmt::format("{}: cannot be had with the switch graph of --variant '{}', which replays a step "
                  "of one batch as a whole; leave one of them out",
                  in_the_way, options.variant.name()));
}

ExitCode report_setup(TrainOptions options) {
  instruments::set_threads(options.threads);
  const auto device = [&]() -> SelectedDevice {
    try {
      return instruments::Device::select(options.device);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  }();
  const auto* found = std::get_if<instruments::Device>(&device);
  const DeviceTraits traits = found ? device_traits(found->torch()) : DeviceTraits{};
  const std::string refusal =
      found ? refuse_variant(options.variant, options.dtype, traits) : std::string();
  // Memory is that of the switches which the device gets.
  if (found && refusal.empty())
    options.variant = without_left_out(options, resolved(options.variant, options.dtype, traits));
  auto lines = validate_setup(device, options.workload(), options.folder());
  for (const auto& folder : {options.output_folder, options.save_weights_folder}) {
    if (!folder.empty() && folder != options.folder()) lines.push_back(check_folder(folder));
  }
  if (found) {
    lines.push_back({refusal.empty() ? SetupStatus::ok : SetupStatus::failed, "variant",
                     refusal.empty() ? options.variant.name() : refusal});
  }
  for (const auto& line : lines) std::cout << to_text(line) << "\n";
  return usable(lines) ? ExitCode::ok : ExitCode::failed;
}

// Ranks share one device each, one console and one set of files, which are rank 0's.
void take_part(TrainOptions& options, const distributed::LaunchEnvironment& where) {
  options.rank = where.rank;
  options.ranks = where.world_size;
  const char* const in_the_way = options.profile_memory    ? "--profile-memory"
                                 : options.profile_pytorch ? "--enable-pytorch-profiler"
                                 : options.profile_flops   ? "--enable-deepspeed-flops"
                                                           : nullptr;
  if (in_the_way != nullptr && options.share != Share::ddp) {
    throw std::invalid_argument(
        fmt::format("{} with --share {}: the profilers know whole models and optimizers only; "
                    "leave one out",
                    in_the_way, to_string(options.share)));
  }
  distributed::check_data_parallel_options(options, options.ranks);
  options.variant = distributed::variant_of_ranks(options.variant, options.share);
  if (where.rank == 0) return;
  options.output_folder.clear();
  options.save_weights_folder.clear();
  options.profile_pytorch = options.profile_memory = options.profile_flops = false;
  options.profile_operators = options.profile_stacks = false;
  std::cout.setstate(std::ios_base::failbit);
}

// What has to be the same on all ranks: options that decide what is computed and sent, and the
// build.
distributed::Agreement agreement_of(const TrainOptions& options) {
  distributed::Agreement all = distributed::shared_agreement(options);
  all.merge(distributed::Agreement{
      {"--batch-size", std::to_string(options.batch)},
      {"--seq-len", std::to_string(options.seq)},
      {"--num-steps", std::to_string(options.num_steps)},
      {"--gradient-accumulation-steps", std::to_string(options.gradient_accumulation_steps)},
      {"--learning-rate", fmt::format("{:.17g}", options.learning_rate)},
      {"--log-interval", std::to_string(options.log_interval)},
      {"--deterministic", options.deterministic ? "yes" : "no"},
      {"--data", options.data_file.empty() ? "no" : "yes"}});
  return all;
}

ExitCode run(int argc, char** argv, const distributed::LaunchEnvironment& where) {
  auto options = parse_train_options(argc, argv, console::SizeFiles::in(fixtures()));
  if (!options) return ExitCode::ok;
  if (!options->note.empty() && where.rank == 0)
    fmt::print(stderr, "tiny_llama_train: note: {}\n", options->note);
  if (options->validate_setup) return report_setup(*options);
  const instruments::BringUp machine("tiny_llama_train", argv,
                                     distributed::machine_choice(*options, where));
  const instruments::Device& device = machine.device();
  options->variant = without_left_out(*options, machine.resolve(options->variant, options->dtype));
  refuse_for_graph(*options);
  if (where.world_size > 1) {
    take_part(*options, where);
  } else if (options->share != Share::ddp) {
    throw std::invalid_argument(
        fmt::format("--share {}: one process has nobody to share with; start several with "
                    "torchrun, mpirun or srun",
                    to_string(options->share)));
  }
  instruments::start_computing();
  if (options->deterministic) make_deterministic();
  std::vector<std::string> command(argv, argv + argc);
  std::ranges::transform(command, command.begin(), instruments::without_folders);
  if (where.world_size == 1) return TrainRun(*options, device, nullptr).run(command);
  distributed::ProcessGroup group(where, device, options->timeout(), agreement_of(*options));
  return TrainRun(*options, device, &group).run(command);
}

}  // namespace
}  // namespace tinyllama::training

int main(int argc, char** argv) {
  return tinyllama::distributed::run_rank("tiny_llama_train", [&](const auto& where) {
    return tinyllama::training::run(argc, argv, where);
  });
}

#include "benchmarks/training/train_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <limits>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/instruments/system_sampler.hpp"
#include "benchmarks/training/flops_analysis.hpp"
#include "benchmarks/training/memory_analysis.hpp"
#include "benchmarks/training/memory_state.hpp"
#include "benchmarks/training/memory_timeline.hpp"
#include "benchmarks/training/range_emitter.hpp"
#include "benchmarks/training/result_folder.hpp"
#include "benchmarks/training/run_document.hpp"
#include "benchmarks/training/tensorboard_events.hpp"
#include "benchmarks/training/train_console.hpp"
#include "benchmarks/training/trainer.hpp"
#include "model/memory_cost.hpp"
#include "model/weights.hpp"

namespace tinyllama::training {
namespace {

using console::ExitCode;

constexpr size_t kOperatorsShown = 10;
constexpr const char* kSummaryFile = "performance_summary.json";

class TrainRun {
 public:
  TrainRun(const TrainOptions& options, const instruments::Device& device,
           const TrainRunPaths& paths, distributed::ProcessGroup* group)
      : options_(options),
        device_(device),
        paths_(paths),
        group_(group),
        profiles_("--profile-dir", options.any_profiler() ? options.profile_folder : ""),
        output_("--output-dir", options.output_folder),
        weights_("--save-weights", options.save_weights_folder),
        data_(open_data()) {
    refuse_for_memory();
    if (options.emit_ranges) ranges_.emplace();
    if (options.profile_pytorch || options.profile_flops)
      operators_.emplace(options, device, profiles_.path());
    if (options.profile_pytorch) events_.emplace(profiles_.path());
  }

  TrainRun(const TrainRun&) = delete;
  TrainRun& operator=(const TrainRun&) = delete;
  ~TrainRun() {
    if (group_) group_->on_loss({});
  }

  ExitCode run(const std::vector<std::string>& command) {
    document_ = run_header(options_, device_, command, data_->name());
    if (group_) {
      document_["distributed"] = distributed_json(options_, *group_);
      group_->on_loss([this](const std::string& what) { keep_steps(what); });
    }
    std::cout << banner(options_, device_, data_->name()) << "\nInitializing model and optimizer..."
              << std::endl;
    ModelState state(options_, device_.torch());
    if (group_) join_ranks(state);
    attempts_.attempt([&] { train(state); });
    attempts_.attempt([&] { compare_weights(); });
    // Nothing to tell, and an earlier run's files are worth more.
    if (steps_.empty()) attempts_.rethrow();
    summarize_run();
    print_summary();
    write_files(state);
    attempts_.rethrow();
    if (weights_differ_) return ExitCode::failed;
    if (!steps_.empty() && !std::isfinite(steps_.back().loss)) return ExitCode::failed;
    return console::interrupted() ? ExitCode::interrupted : ExitCode::ok;
  }

 private:
  // Said before the first allocation and the first file, and not in the words of an allocator.
  void refuse_for_memory() const {
    int64_t predicted = full_step_memory(options_.workload()).peak();
    // Messages, and with a sharded optimizer the copies that they are gathered in.
    const int64_t weights =
        count_parameters(ModelConfig(options_.dimensions)) * storage_bytes(options_.dtype);
    // Ranks of one host share its memory.
    const int sharing = group_ && !device_.is_gpu() ? group_->where().local_size : 1;
    if (group_) predicted = sharing * (predicted + (options_.shard_optimizer ? 2 : 1) * weights);
    // Beyond 64 bits the formulas' products wrap around.
    if (predicted < 0) predicted = std::numeric_limits<int64_t>::max();
    const int64_t free = device_.free_memory_bytes();
    if (predicted <= free) return;
    throw std::invalid_argument(fmt::format(
        "--batch-size {} --seq-len {}: a step of {} parameters{} needs {} of memory, and {} is "
        "free "
        "on {}; lower one of them, take a smaller model, or use --variant optimized, checkpoint "
        "or a narrower --dtype",
        options_.batch_size, options_.seq_len, count_parameters(ModelConfig(options_.dimensions)),
        sharing > 1 ? fmt::format(" on {} ranks of this host", sharing) : "",
        console::format_bytes(predicted), console::format_bytes(free), device_.description().name));
  }

  std::unique_ptr<TokenData> open_data() const {
    const ModelConfig config(options_.dimensions);
    const BatchOptions batch{options_.batch_size, options_.seq_len, options_.seed, device_.torch()};
    if (options_.data_file.empty()) return synthetic_data(config, batch);
    try {
      return text_file_data(options_.data_file, config, batch);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(fmt::format("--data: {}", error.what()));
    }
  }

  void train(ModelState& state) {
    Profilers profilers;
    if (operators_) profilers.operators = &*operators_;
    profilers.phase_ranges = options_.emit_ranges;
    profilers.keep_memory = [&](MemoryRecording recording) { recording_ = std::move(recording); };
    Trainer trainer(options_, device_, state, *data_, profilers, parallel_ ? &*parallel_ : nullptr);
    trainer.on_step([&](const StepRecord& step) { keep_step(step); });
    instruments::SystemSampler sampler(device_);
    std::cout << "\nStarting training..." << std::endl;
    attempts_.attempt([&] {
      trainer.run();
      has_trained_ = true;
    });
    document_["device_sampling"] = sampling_json(sampler.stop());
  }

  void keep_step(const StepRecord& step) {
    steps_.push_back(step);
    const bool last = step.step == options_.num_steps || !std::isfinite(step.loss);
    if (step.step % options_.log_interval == 0 || step.step == 1 || last)
      std::cout << step_line(step, options_.num_steps) << std::flush;
    write_event(step);
    if (!std::isfinite(step.loss) && options_.rank == 0) {
      fmt::print(stderr,
                 "tiny_llama_train: step {}: the loss is {}: training stopped; lower "
                 "--learning-rate {:g}, or use a wider --dtype\n",
                 step.step, step.loss, options_.learning_rate);
    }
  }

  void join_ranks(ModelState& state) {
    parallel_.emplace(options_, state, *group_);
    const std::string different = parallel_->differing_ranks("initial weights");
    if (!different.empty()) throw std::invalid_argument(fmt::format("--weights: {}", different));
  }

  // What data-parallel training promises, checked where it can be. A file that could not be written
  // is one rank's own trouble, and keeps the others waiting no less.
  void compare_weights() {
    if (!parallel_ || !has_trained_) return;
    const std::string different = parallel_->differing_ranks("trained weights");
    document_["distributed"]["weights_are_identical"] = different.empty();
    weights_differ_ = !different.empty();
    if (weights_differ_ && options_.rank == 0)
      fmt::print(stderr, "tiny_llama_train: wrong result: after the last step {}\n", different);
  }

  void write_event(const StepRecord& step) {
    if (!events_) return;
    const auto samples = static_cast<double>(options_.samples_per_step());
    try {
      events_->write({.step = step.step,
                      .loss = step.loss,
                      .evaluation_loss = step.evaluation_loss,
                      .step_time_seconds = step.times.total(),
                      .samples_per_second = samples / step.times.total(),
                      .peak_memory_MiB = static_cast<double>(step.peak_memory_bytes) / 1048576.0});
    } catch (...) {
      // A full disk ends the curves, not the training.
      attempts_.attempt([] { throw; });
      events_.reset();
    }
  }

  // A launcher may end this process before it has found out who is lost.
  void keep_steps(const std::string& what) {
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
    document_["summary"] = summarize(steps_, samples, samples * options_.seq_len, whole);
    document_["summary"]["interrupted"] = console::interrupted();
    for (const char* part : {"operators", "memory", "flops"}) document_[part] = nullptr;
  }

  void summarize_run() {
    summarize_steps();
    if (operators_) document_["operators"] = operators_->to_json();
    if (recording_)
      document_["memory"] = analyze_memory(*recording_, options_.workload(), resident_before_);
    attempts_.attempt([&] { analyze_flops_of_step(); });
  }

  void analyze_flops_of_step() {
    const OperatorStatistics* statistics = operators_ ? operators_->flops_statistics() : nullptr;
    if (statistics == nullptr || console::interrupted()) return;
    std::cout << "\nMeasuring the peaks of this device..." << std::endl;
    const Workload workload = options_.workload();
    const FlopsMeasurement measurement{
        options_.flops_steps().first, plain_step_seconds(), options_.gradient_accumulation_steps,
        statistics->component_seconds(), statistics->softmax_seconds()};
    const FlopsAnalysis analysis =
        analyze_flops(workload, measurement,
                      measure_denominators(device_, workload, measurement, paths_.device_peaks));
    document_["flops"] = {{"flops_profile", analysis.flops_profile},
                          {"computational_intensity", analysis.computational_intensity},
                          {"roofline_data", analysis.roofline_data}};
  }

  // Of a step that nobody profiled; where there is none, of all without their evaluations.
  double plain_step_seconds() const {
    const Json& summary = document_.at("summary");
    const Json& plain = summary.at("plain_average_step_seconds");
    if (!plain.is_null()) return plain.get<double>();
    const Json& evaluation = summary.at("breakdown").at("evaluation").at("seconds");
    return summary.at("average_step_seconds").get<double>() - evaluation.get<double>();
  }

  void print_summary() const {
    std::cout << performance_summary_text(document_) << memory_summary_text(document_.at("memory"))
              << operator_summary_text(document_.at("operators"), kOperatorsShown)
              << flops_summary_text(document_.at("flops")) << std::flush;
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
      if (!recording_->events.empty())
        profiles_.write("memory_timeline.svg", memory_timeline_svg(*recording_));
    });
    const Json& flops = document_.at("flops");
    for (const char* part : {"flops_profile", "computational_intensity", "roofline_data"}) {
      attempts_.attempt([&] {
        if (!flops.is_null())
          profiles_.write(fmt::format("flops_analysis/{}.json", part), flops.at(part).dump(2));
      });
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
      if (weights_.exists())
        save_weights(weights_.path(), ModelConfig(options_.dimensions), state.model.parameters());
    });
    if (options_.any_profiler()) std::cout << "\nProfiling complete!\n";
    std::cout << files_text(profiles_.path().string(), profiles_.files())
              << files_text(output_.path().string(), output_.files()) << std::flush;
  }

  const TrainOptions& options_;
  instruments::Device device_;
  const TrainRunPaths& paths_;
  distributed::ProcessGroup* group_;
  std::optional<DataParallel> parallel_;
  bool has_trained_ = false;
  bool weights_differ_ = false;
  ResultFolder profiles_;
  ResultFolder output_;
  ResultFolder weights_;
  std::unique_ptr<TokenData> data_;
  std::optional<RangeEmitter> ranges_;
  std::optional<OperatorRecorder> operators_;
  std::optional<TensorboardEvents> events_;
  std::optional<MemoryRecording> recording_;
  std::optional<int64_t> resident_before_ = resident_set_bytes();
  std::vector<StepRecord> steps_;
  WriteAttempts attempts_;
  Json document_;
};

}  // namespace

ExitCode run_training(const TrainOptions& options, const instruments::Device& device,
                      const std::vector<std::string>& command, const TrainRunPaths& paths,
                      distributed::ProcessGroup* group) {
  console::install_interrupt_handler();
  return TrainRun(options, device, paths, group).run(command);
}

}  // namespace tinyllama::training

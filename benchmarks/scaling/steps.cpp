#include "benchmarks/scaling/steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "benchmarks/distributed/gradient_reducer.hpp"
#include "benchmarks/distributed/tensor_parallel.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "benchmarks/scaling/shared_steps.hpp"
#include "model/relative_error.hpp"
#include "model/train_step.hpp"

namespace tinyllama::scaling {
namespace {

constexpr double kPercent = 100.0;
constexpr int64_t kWarmUpSteps = 3;

bool is_alone(StepMode mode) {
  return mode == StepMode::alone || mode == StepMode::alone_global;
}

bool is_tensor(StepMode mode) {
  return mode == StepMode::tensor_local || mode == StepMode::tensor ||
         mode == StepMode::tensor_communication;
}

// Of a model of its own.
bool is_shared(StepMode mode) {
  return mode >= StepMode::sharded;
}

bool is_communication(StepMode mode) {
  return mode == StepMode::communication || mode == StepMode::zero3_communication ||
         mode == StepMode::tensor_communication;
}

// Of all ranks together.
bool is_joint_step(StepMode mode) {
  return !is_alone(mode) && !is_communication(mode) && mode != StepMode::local &&
         mode != StepMode::tensor_local;
}

// Those that a run with these options has, in the order of its results.
std::vector<StepMode> step_modes(const ScalingOptions& options, int ranks) {
  std::vector<StepMode> modes = {StepMode::alone};
  if (ranks > 1 && options.global_batch) modes.push_back(StepMode::alone_global);
  if (ranks > 1) modes.insert(modes.end(), {StepMode::local, StepMode::no_overlap});
  if (options.overlap || ranks == 1)
    modes.push_back(options.overlap ? StepMode::overlap : StepMode::no_overlap);
  if (ranks > 1) modes.push_back(StepMode::communication);
  const auto shared = modes_of(options.share, ranks, options.overlap);
  modes.insert(modes.end(), shared.begin(), shared.end());
  return modes;
}

int64_t live_bytes(const ProcessGroup& group) {
  return instruments::live_tensor_bytes(group.device().torch());
}

// A model with its optimizer and this rank's samples.
class StepSession {
 public:
  // Every rank has the same weights, and its own rows of one batch for all.
  StepSession(const ScalingOptions& options, ProcessGroup& group)
      : group_(group),
        at_start_(live_bytes(group)),
        initializer_(options.seed, options.dtype, group.device().torch()),
        model_(ModelConfig(options.dimensions), options.variant, options.seq, initializer_),
        optimizer_(model_.parameters(), options.variant, {.learning_rate = kLearningRate}),
        step_(model_, optimizer_),
        with_plain_(live_bytes(group)),
        global_batch_(random_token_batch(model_.config(), options.batch * group.size(), options.seq,
                                         initializer_)),
        batch_(rows_of(global_batch_, options.batch * group.rank(), options.batch)),
        with_batches_(live_bytes(group)),
        reducer_(group, optimizer_.parameters(), options.bucket_options()),
        with_messages_(live_bytes(group)) {
    leave_first_step(optimizer_);
    shared_ = make_shared_step(options, group, {global_batch_, batch_});
    with_shared_ = live_bytes(group);
  }

  // Before the first steps of a mode, whose peak is looked at: leaves nothing behind of the modes
  // before it, but the gradients that the sums alone are of. All ranks have to call it.
  void begin(StepMode mode) {
    if (mode == StepMode::communication) return compute_gradients(StepMode::no_overlap);
    if (mode == StepMode::zero3_communication || mode == StepMode::tensor_communication) return;
    clear_gradients();
    if (shared_) shared_->clear_gradients();
  }

  // What lives meanwhile, and is not the mode's.
  int64_t unused_bytes(StepMode mode) const {
    const int64_t plain = with_plain_ - at_start_;
    const int64_t messages = with_messages_ - with_batches_;
    const int64_t shared = with_shared_ - with_messages_;
    if (is_shared(mode)) return at_start_ + plain + messages;
    return at_start_ + shared + (is_joint_step(mode) ? 0 : messages);
  }

  // All ranks have to call it, with the same arguments.
  RankTimes time_steps(StepMode mode, int64_t steps) {
    reducer_.set_overlap(mode == StepMode::overlap);
    return time_together(group_,
                         {.run = [&] { run(mode); },
                          .prepare = [&] { prepare(mode); },
                          .first_rank_only = is_alone(mode)},
                         steps);
  }

  // One forward and backward of this rank's samples, gradients summed over the ranks as the mode
  // says.
  void compute_gradients(StepMode mode) {
    clear_gradients();
    reducer_.set_overlap(mode == StepMode::overlap);
    compute_gradients();
  }

  // The sum over the samples of all ranks, on rank 0 alone, a rank's share at a time, so that it
  // needs no more memory than a step and nobody waits for longer. All ranks have to call it.
  void compute_global_gradients() {
    clear_gradients();
    const int64_t samples = batch_.tokens.size(0);
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (group_.is_first()) {
        const TokenBatch share = rows_of(global_batch_, samples * rank, samples);
        step_.backward(step_.forward(share, group_.size()));
      }
      group_.barrier();
    }
  }

  void update() { step_.update(); }
  // Null with --share ddp.
  SharedStep* shared() { return shared_.get(); }

  const NamedTensors& parameters() const { return optimizer_.parameters(); }

 private:
  void clear_gradients() { optimizer_.clear_gradients(); }

  // Untimed.
  void prepare(StepMode mode) {
    if (is_shared(mode)) return shared_->clear_gradients();
    if (mode != StepMode::communication) clear_gradients();
  }

  void compute_gradients() {
    // The mean over all samples is the sum over ranks of a share of each rank's mean.
    const at::Tensor loss = step_.forward(batch_, group_.size());
    reducer_.backward([&] { step_.backward(loss); });
  }

  void run(StepMode mode) {
    switch (mode) {
      case StepMode::alone:
      case StepMode::local:
        step_.run({&batch_, 1});
        return;
      case StepMode::alone_global:
        step_.run({&global_batch_, 1});
        return;
      case StepMode::no_overlap:
      case StepMode::overlap:
        compute_gradients();
        step_.update();
        return;
      case StepMode::communication:
        reducer_.send_all();
        return;
      default:
        shared_->run(mode);
        return;
    }
  }

  ProcessGroup& group_;
  int64_t at_start_;  // live bytes, as those below where they stand
  TensorInitializer initializer_;
  TinyLlama model_;
  AdamW optimizer_;
  TrainStep step_;
  int64_t with_plain_;
  TokenBatch global_batch_;
  TokenBatch batch_;  // this rank's rows of it
  int64_t with_batches_;
  distributed::GradientReducer reducer_;
  int64_t with_messages_;
  std::unique_ptr<SharedStep> shared_;
  int64_t with_shared_ = 0;
};

struct Precision {
  double unit;           // in the last place of 1
  double allowed_error;  // sums in another order differ by some hundred units
};

Precision precision_of(const ScalingOptions& options) {
  switch (options.compress.value_or(storage_type(options.dtype))) {
    case c10::ScalarType::BFloat16:
      return {0x1p-7, 2e-2};
    case c10::ScalarType::Half:
      return {0x1p-10, 5e-3};
    default:
      return {0x1p-23, uses_autocast(options.dtype) ? 2e-2 : 1e-5};
  }
}

// A gradient's rounding counts for more in its update, the steepest where the gradient is small.
constexpr double kUpdateFactor = 30;

using Values = std::vector<double>;

// How far two ways of changing the same weights are apart, relative to the largest change, beyond
// one unit in the last place of each weight; infinite where only the first changes any, or where
// one is not finite.
double change_error(const Values& before, const at::Tensor& first, const at::Tensor& second,
                    double unit) {
  const Values one = to_values(first);
  const Values other = to_values(second);
  double beyond = 0;
  double largest = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double apart = std::abs(one.at(i) - other.at(i));
    if (!std::isfinite(apart)) return std::numeric_limits<double>::infinity();
    beyond = std::max(beyond, apart - unit * std::abs(other.at(i)));
    largest = std::max(largest, std::abs(other.at(i) - before[i]));
  }
  if (beyond <= 0) return 0;
  return largest > 0 ? beyond / largest : std::numeric_limits<double>::infinity();
}

struct StepProof {
  // Largest error of a gradient that was summed over the ranks, against one process that has all
  // samples, over the largest magnitude of that gradient.
  double max_rel_error = 0;
  // Likewise of a weight's change by one step of --share's way, beyond one unit in its last place,
  // over the largest change of that tensor.
  double shared_error = 0;
  // Empty, or what is wrong, with the numbers.
  std::string failure;
};

// Rank 0 alone has compared: all ranks take its words and its number.
void share(ProcessGroup& group, const std::string& name, double& error, std::string& failure) {
  error = group.number_of_first(error);
  failure = group.gather_texts(name, failure).front();
}

void prove_gradients(StepSession& session, const ScalingOptions& options, ProcessGroup& group,
                     StepProof& proof) {
  std::vector<at::Tensor> expected;
  session.compute_global_gradients();
  // The first rank alone has computed them.
  const std::string mine = group.is_first() ? lacks_gradients(session.parameters()) : std::string();
  if (const auto lack = group.gather_texts("missing gradients", mine).front(); !lack.empty()) {
    proof.failure = fmt::format("wrong result: {}", lack);
    return;
  }
  for (const auto& [name, parameter] : session.parameters()) {
    if (group.is_first()) expected.push_back(parameter.grad().clone());
  }
  std::string worst;
  for (const StepMode mode : {StepMode::no_overlap, StepMode::overlap}) {
    session.compute_gradients(mode);
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto& [name, parameter] = session.parameters()[i];
      const double error =
          largest_error(to_values(parameter.grad()), to_values(expected[i])).relative;
      if (error <= proof.max_rel_error) continue;
      proof.max_rel_error = error;
      worst = name;
    }
  }
  const double allowed = precision_of(options).allowed_error;
  if (proof.max_rel_error > allowed) {
    proof.failure = fmt::format(
        "wrong result: gradient of {}, summed over {} ranks, differs from one process with all "
        "samples by {:.3g} of its largest magnitude, allowed are {:g}",
        worst, group.size(), proof.max_rel_error, allowed);
  }
  share(group, "gradients proved", proof.max_rel_error, proof.failure);
}

// The weights of --share's model, by the names of the plain one's.
NamedTensors shared_parameters(StepSession& session) {
  NamedTensors named;
  const std::vector<at::Tensor> tensors = session.shared()->parameters();
  for (size_t i = 0; i < tensors.size(); ++i)
    named.emplace_back(session.parameters()[i].first, tensors[i]);
  return named;
}

void prove_shared_step(StepSession& session, const ScalingOptions& options, ProcessGroup& group,
                       StepProof& proof) {
  std::vector<Values> before;
  for (const auto& [name, parameter] : shared_parameters(session)) {
    if (group.is_first()) before.push_back(to_values(parameter));
  }
  session.shared()->clear_gradients();
  session.shared()->run_all_samples();
  const NamedTensors shared = shared_parameters(session);
  proof.failure = group.differing_ranks("shared weights proved", shared);
  if (!proof.failure.empty()) return;
  const Precision precision = precision_of(options);
  const double allowed = kUpdateFactor * precision.allowed_error;
  for (size_t i = 0; i < shared.size() && group.is_first(); ++i) {
    const auto& [name, parameter] = session.parameters()[i];
    const double error = change_error(before[i], shared[i].second, parameter, precision.unit);
    proof.shared_error = std::max(proof.shared_error, error);
    if (error > allowed) {
      proof.failure = fmt::format(
          "wrong result: one step of --share {} changes {} otherwise than that of a whole model, "
          "by {:.3g} of its largest change, allowed are {:g}",
          to_string(options.share), name, error, allowed);
    }
  }
  share(group, "shared step proved", proof.shared_error, proof.failure);
}

// All ranks have to call it and get the same answer.
StepProof prove_step(StepSession& session, const ScalingOptions& options, ProcessGroup& group) {
  StepProof proof;
  group.enter("proof of the step");
  prove_gradients(session, options, group, proof);
  if (!proof.failure.empty()) return proof;
  session.update();
  proof.failure = group.differing_ranks("weights proved", session.parameters());
  if (proof.failure.empty() && session.shared() != nullptr)
    prove_shared_step(session, options, group, proof);
  return proof;
}

// In each round every mode is run for --min-time.
class StepRounds {
 public:
  StepRounds(const ScalingOptions& options, ProcessGroup& group, console::Progress& progress)
      : options_(options), group_(group), progress_(progress), session_(options, group) {
    for (const StepMode mode : step_modes(options, group.size())) {
      const bool is_compressed =
          options.compress && (is_joint_step(mode) || mode == StepMode::communication);
      const std::string label =
          is_compressed ? "gradients sent and summed as " + compression_name(options) : "";
      records_.push_back({.mode = mode, .row = {.name = name_of(mode), .label = label}});
    }
  }

  // Empty, or what is wrong.
  std::string prove() {
    proof_ = prove_step(session_, options_, group_);
    if (proof_.failure.empty()) {
      const std::string shared =
          session_.shared() == nullptr
              ? ""
              : fmt::format("; weights after a step of --share {} within {:.1e} of their changes",
                            to_string(options_.share), proof_.shared_error);
      progress_.say(fmt::format("proved: gradients within {:.1e} of one process with all samples{}",
                                proof_.max_rel_error, shared));
    }
    return proof_.failure;
  }

  void measure(ScalingResults& results) {
    for (ModeRecord& record : records_) {
      if (any_rank_interrupted(group_)) return;
      warm_up(record);
    }
    measure_rounds(
        options_, group_, progress_, results, records_,
        [this](ModeRecord& record, const std::string& place) { measure(record, place); },
        [this] { return note_round(); });
  }

 private:
  struct ModeRecord {
    StepMode mode;
    int64_t steps = 1;  // in a round
    double peak_bytes = 0;
    double cpu_seconds = 0;  // in this round
    RowRecord row;
  };

  void warm_up(ModeRecord& record) {
    group_.enter(fmt::format("warm-up of {}", to_string(record.mode)));
    session_.begin(record.mode);
    instruments::MemoryMeter meter(group_.device());
    meter.start();
    const RoundSamples samples =
        gather_samples(group_, session_.time_steps(record.mode, kWarmUpSteps).seconds);
    const int64_t peak = meter.read().peak_bytes - session_.unused_bytes(record.mode);
    record.peak_bytes = group_.largest_number(static_cast<double>(peak));
    // The last one: the first pay for what later ones find in caches.
    double last = 0;
    for (const auto& rank : samples) {
      if (!rank.empty()) last = std::max(last, rank.back());
    }
    record.steps = agreed_iterations(group_, options_.min_seconds, last);
  }

  void measure(ModeRecord& record, const std::string& place) {
    group_.enter(fmt::format("{}, {} steps {}", place, record.steps, to_string(record.mode)));
    const RankTimes mine = session_.time_steps(record.mode, record.steps);
    record.cpu_seconds = mine.cpu_seconds;
    round_[record.mode] = gather_samples(group_, mine.seconds);
    if (is_joint_step(record.mode) || is_communication(record.mode))
      add_waits(record.row, group_, mine, record.steps);
  }

  // Adds a repetition to every row. Returns the times of the round, in words.
  std::string note_round() {
    std::string times;
    for (ModeRecord& record : records_) {
      const RoundSamples& samples = round_.at(record.mode);
      const double seconds = slowest_seconds(samples);
      record.row.repetitions.push_back(
          {seconds, record.cpu_seconds, record.steps, counters(record, seconds)});
      record.row.samples.push_back(samples);
      const bool is_global = record.mode == StepMode::alone_global;
      times +=
          fmt::format("{}{} {:.1f} ms", times.empty() ? "" : ", ",
                      is_global ? "alone with all samples" : to_string(record.mode), seconds * 1e3);
    }
    return times;
  }

  // Of the ranks that compute.
  harness::Counters counters(const ModeRecord& record, double seconds) const {
    const StepMode mode = record.mode;
    harness::Counters found = {{"ranks", group_.size()}};
    found.merge(wait_counters(record.row));
    // Its gradients are those of a step before, whose peak is no figure of the sums.
    if (is_communication(mode)) return found;
    found["peak_memory_MiB"] = record.peak_bytes / 1048576.0;
    const Workload workload = workload_of(mode);
    const bool is_one_batch = is_alone(mode) || is_tensor(mode);
    const auto samples = static_cast<double>(workload.batch * (is_one_batch ? 1 : group_.size()));
    const auto flops = static_cast<double>(full_step_cost(workload).model_flops);
    found["samples_per_second"] = samples / seconds;
    found["tokens_per_second"] = samples * static_cast<double>(workload.seq) / seconds;
    // Of one rank, as its device's peak is.
    found["TFLOPS"] = flops / seconds * 1e-12;
    found["model_flops"] = flops;
    if (!is_joint_step(mode)) return found;
    if (options_.verify)
      found["max_rel_error"] = is_shared(mode) ? proof_.shared_error : proof_.max_rel_error;
    found.merge(scaling_counters(round_, mode, group_.size()));
    return found;
  }

  // Of one rank; of the layers' shares the first's.
  Workload workload_of(StepMode mode) const {
    Workload workload = options_.workload();
    const bool is_global = options_.global_batch && is_tensor(mode);
    if (mode == StepMode::alone_global || is_global) workload.batch = *options_.global_batch;
    if (is_tensor(mode))
      workload.config = distributed::tensor_share(workload.config, 0, group_.size());
    return workload;
  }

  std::string name_of(StepMode mode) const {
    const Workload workload = workload_of(mode);
    return fmt::format("full_step/train/{}/{}/{}/batch:{}/seq:{}/ranks:{}/{}",
                       workload.variant.name(), options_.size, to_string(workload.dtype),
                       workload.batch, workload.seq, group_.size(), to_string(mode));
  }

  const ScalingOptions& options_;
  ProcessGroup& group_;
  console::Progress& progress_;
  StepSession session_;
  StepProof proof_;
  std::vector<ModeRecord> records_;
  ModeSamples round_;
};

}  // namespace

std::string_view to_string(StepMode mode) {
  // The two of rank 0 alone are told apart by the batch in the row's name.
  constexpr std::string_view kNames[] = {"alone",
                                         "alone",
                                         "local",
                                         "no_overlap",
                                         "overlap",
                                         "communication",
                                         "sharded",
                                         "zero3_no_overlap",
                                         "zero3",
                                         "zero3_communication",
                                         "tensor_local",
                                         "tensor",
                                         "tensor_communication"};
  return kNames[static_cast<size_t>(mode)];
}

namespace {

// What a step of all ranks is compared with.
struct Comparison {
  StepMode local;
  std::optional<StepMode> plain;  // without overlap
};

Comparison comparison_of(StepMode mode) {
  if (mode == StepMode::tensor) return {StepMode::tensor_local, {}};
  if (mode == StepMode::zero3) return {StepMode::local, StepMode::zero3_no_overlap};
  if (mode == StepMode::overlap) return {StepMode::local, StepMode::no_overlap};
  return {StepMode::local, {}};
}

}  // namespace

harness::Counters scaling_counters(const ModeSamples& round, StepMode mode, int ranks) {
  const auto has = [&](StepMode other) { return round.count(other) > 0; };
  harness::Counters counters;
  if (!has(StepMode::alone) || !has(mode)) return counters;
  double alone = slowest_seconds(round.at(StepMode::alone));
  const double step = slowest_seconds(round.at(mode));
  const auto percent = [&](double seconds) { return kPercent * seconds / step; };
  // What a step would take if every rank were as fast as one alone and nothing were communicated.
  double ideal = alone;
  const bool is_strong = has(StepMode::alone_global) || mode == StepMode::tensor;
  if (is_strong) {
    const StepMode whole = has(StepMode::alone_global) ? StepMode::alone_global : StepMode::alone;
    ideal = slowest_seconds(round.at(whole)) / ranks;
    counters["strong_efficiency_percent"] = percent(ideal);
    if (mode == StepMode::tensor)
      alone = ideal;
    else
      counters["loss_small_batch_percent"] = percent(alone - ideal);
  } else {
    counters["weak_efficiency_percent"] = percent(ideal);
  }
  const auto [local, plain_mode] = comparison_of(mode);
  if (!has(local)) return counters;
  const double slowest = slowest_seconds(round.at(local));
  const double mean = mean_seconds(round.at(local));
  counters["loss_slower_local_percent"] = percent(mean - alone);
  counters["loss_imbalance_percent"] = percent(slowest - mean);
  counters["loss_communication_percent"] = percent(step - slowest);
  if (plain_mode && has(*plain_mode)) {
    const double plain = slowest_seconds(round.at(*plain_mode));
    // Where the sums cost nothing there is nothing to hide.
    if (plain > slowest)
      counters["overlap_percent"] = kPercent * (plain - step) / (plain - slowest);
  }
  return counters;
}

std::string measure_steps(const ScalingOptions& options, ProcessGroup& group,
                          console::Progress& progress, ScalingResults& results) {
  StepRounds rounds(options, group, progress);
  if (options.verify) {
    const std::string failure = rounds.prove();
    if (!failure.empty()) return failure;
  }
  rounds.measure(results);
  return {};
}

}  // namespace tinyllama::scaling

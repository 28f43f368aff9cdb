#include "benchmarks/training/trainer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/distributed/launch.hpp"
#include "benchmarks/instruments/timer.hpp"
#include "model/component_range.hpp"
#include "model/weights.hpp"

namespace tinyllama::training {

using distributed::Share;

namespace {

ModelConfig config_of(const TrainOptions& options) {
  const ModelConfig whole(options.dimensions);
  if (options.share != Share::tensor) return whole;
  return distributed::tensor_share(whole, options.rank, options.ranks);
}

// Sharded optimizers have parameters and moments of their own.
bool has_own_optimizer(const TrainOptions& options) {
  return options.share == Share::zero1 || options.share == Share::zero3;
}

}  // namespace

ModelState::ModelState(const TrainOptions& options, c10::Device device,
                       const std::function<void(const NamedTensors&)>& check)
    : initializer(options.seed, options.dtype, device),
      model(config_of(options), options.variant, options.seq, initializer),
      optimizer(has_own_optimizer(options) ? NamedTensors() : model.parameters(), options.variant,
                {.learning_rate = options.learning_rate}),
      step(model, optimizer),
      config_text(options.config_text) {
  const auto fill = [&](const NamedTensors& parameters) {
    if (!options.weights_folder.empty()) {
      const Weights weights(options.weights_folder);
      weights.copy_to(parameters);
      config_text = weights.config_text();
      not_read = weights.not_read();
    }
    check(parameters);
  };
  if (options.share != Share::tensor) {
    fill(model.parameters());
    return;
  }
  TensorInitializer same(options.seed, options.dtype, device);
  const TinyLlama whole(ModelConfig(options.dimensions), options.variant, options.seq, same);
  fill(whole.parameters());
  distributed::copy_share(whole.parameters(), model.parameters(), options.rank);
}

double ModelState::evaluate(const TokenBatch& batch) const {
  const at::NoGradGuard no_grad;
  return step.forward(batch).item<double>();
}

double PhaseTimes::total() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

/// How long the phases of a step take, on the device.
class Trainer::PhaseClock {
 public:
  explicit PhaseClock(const instruments::Device& device) : device_(device), marks_(device) {}

  /// What follows belongs to `phase`, until the next begin() or end_step().
  void begin(Phase phase) {
    const size_t now = marks_.add();
    if (open_) stretches_.push_back({open_->first, open_->second, now, false});
    open_.emplace(phase, now);
  }

  void end_step() {
    if (!open_) return;
    stretches_.push_back({open_->first, open_->second, marks_.add(), true});
    open_.reset();
  }

  /// The steps ended since the last collect(), in order. Waits for the device.
  std::vector<PhaseTimes> collect() {
    device_.synchronize();
    std::vector<PhaseTimes> steps;
    PhaseTimes step;
    for (const PhaseStretch& stretch : stretches_) {
      step[stretch.phase] += marks_.seconds(stretch.begin, stretch.end);
      if (!stretch.ends_step) continue;
      steps.push_back(step);
      step = {};
    }
    stretches_.clear();
    marks_.clear();
    return steps;
  }

 private:
  struct PhaseStretch {
    Phase phase;
    size_t begin;  // of marks_
    size_t end;
    bool ends_step;
  };

  instruments::Device device_;
  instruments::Marks marks_;
  std::vector<PhaseStretch> stretches_;
  std::optional<std::pair<Phase, size_t>> open_;
};

Trainer::Trainer(const TrainOptions& options, const instruments::Device& device, ModelState& state,
                 TokenData& data, OperatorRecorder* operators, distributed::ProcessGroup* group)
    : options_(options),
      device_(device),
      state_(state),
      data_(data),
      operators_(operators),
      group_(group),
      clock_(std::make_unique<PhaseClock>(device)),
      meter_(device) {
  if (group != nullptr) share_steps();
  if (!options.variant.has(Switch::graph)) return;
  // The captured step reads its batch where it was captured; later ones are copied there.
  graph_batch_ = data.train_batch(1, 0);
  graph_batch_ = {graph_batch_.tokens.clone(), graph_batch_.targets.clone()};
  graph_.emplace(state.step, state.optimizer, graph_batch_);
  capture_peak_bytes_ = meter_.read().peak_bytes;
}

Trainer::~Trainer() {
  state_.model.set_hooks(nullptr);
}

void Trainer::share_steps() {
  const AdamWOptions adamw = {.learning_rate = options_.learning_rate};
  switch (options_.share) {
    case Share::ddp:
      reducer_.emplace(*group_, state_.model.parameters(), options_.bucket_options());
      return;
    case Share::zero1:
      sharded_.emplace(*group_, state_.model.parameters(), options_.variant, adamw,
                       options_.bucket_options());
      return;
    case Share::zero3:
      sharded_parameters_.emplace(*group_, state_.model, options_.variant, adamw, options_.overlap);
      return;
    case Share::tensor:
      tensor_parallel_.emplace(*group_, ModelConfig(options_.dimensions));
      state_.model.set_hooks(&*tensor_parallel_);
      return;
  }
}

NamedTensors Trainer::whole_parameters() {
  NamedTensors parameters = state_.model.parameters();
  if (sharded_parameters_) {
    sharded_parameters_->gather_parameters();
    for (auto& [name, parameter] : parameters) parameter = parameter.detach().clone();
  }
  if (tensor_parallel_) {
    TensorInitializer shapes(options_.seed, options_.dtype, c10::Device(c10::DeviceType::Meta));
    const TinyLlama whole(ModelConfig(options_.dimensions), options_.variant, options_.seq, shapes);
    std::vector<at::Tensor> shares;
    for (const auto& [name, parameter] : parameters) shares.push_back(parameter.detach());
    const auto joined = distributed::join_shares(*group_, whole.parameters(), shares);
    for (size_t i = 0; i < joined.size(); ++i) parameters[i].second = joined[i];
  }
  return parameters;
}

int64_t Trainer::sample_ranks() const {
  return group_ != nullptr && options_.share != Share::tensor ? group_->size() : 1;
}

void Trainer::begin(Phase phase) {
  phase_range_.reset();
  if (memory_) memory_->begin_phase(phase);
  clock_->begin(phase);
  const bool is_range = phase == Phase::forward || phase == Phase::backward;
  if (!is_range || !(operators_ || options_.emit_ranges)) return;
  phase_range_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  phase_range_->before(to_string(phase).data());
}

at::Tensor Trainer::train(int64_t step) {
  if (graph_) {
    begin(Phase::data_loading);
    {
      const ComponentRange range("data_loading");
      const TokenBatch batch = data_.train_batch(step, 0);
      graph_batch_.tokens.copy_(batch.tokens);
      graph_batch_.targets.copy_(batch.targets);
    }
    begin(Phase::forward);
    return graph_->run().clone();
  }
  // The micro-batches of all ranks follow each other, as those of one process with all of them.
  const int64_t micro_steps = options_.gradient_accumulation_steps;
  const int64_t ranks = sample_ranks();
  const int64_t first = ranks > 1 ? group_->rank() * micro_steps : 0;
  // Names the step, for whoever loses a rank in it.
  if (group_) group_->enter(fmt::format("step {}", step));
  at::Tensor total;
  for (int64_t micro = 0; micro < micro_steps; ++micro) {
    begin(Phase::data_loading);
    const TokenBatch batch = [&] {
      const ComponentRange range("data_loading");
      return data_.train_batch(step, first + micro);
    }();
    begin(Phase::forward);
    at::Tensor loss = state_.step.forward(batch, micro_steps * ranks);
    begin(Phase::backward);
    backward(loss, micro + 1 == micro_steps);
    loss = loss.detach();
    total = total.defined() ? total + loss : loss;
  }
  // Where a sharded optimizer has not taken them away.
  if (step == 1 && !sharded_ && !sharded_parameters_) {
    const std::string lack = lacks_gradients(state_.model.parameters());
    if (!lack.empty())
      throw console::WrongResultError(
          fmt::format("--variant '{}': {}", options_.variant.name(), lack));
  }
  if (memory_) memory_->mark_gradients(state_.optimizer.parameters());
  begin(Phase::optimizer);
  update();
  return total;
}

// The last backward of a step sums its gradients over the ranks, with those of the micro-batches
// before it; sharded parameters every one. Waiting for the sums is a part of the backward that they
// overlap.
void Trainer::backward(const at::Tensor& loss, bool is_last) {
  const auto plain = [&] { state_.step.backward(loss); };
  if (sharded_parameters_) return sharded_parameters_->backward(plain);
  if (is_last && sharded_) return sharded_->backward(plain);
  if (is_last && reducer_) return reducer_->backward(plain);
  plain();
}

void Trainer::update() {
  const auto run = [&](auto& optimizer) {
    {
      const ComponentRange range("optimizer");
      optimizer.step();
    }
    begin(Phase::other);
    optimizer.clear_gradients();
  };
  if (sharded_) return run(*sharded_);
  if (sharded_parameters_) return run(*sharded_parameters_);
  state_.step.update();
  begin(Phase::other);
  state_.optimizer.clear_gradients();
}

// Ranks stop after the same step.
bool Trainer::interrupted() const {
  return group_ ? interrupted_together_ : console::interrupted();
}

void Trainer::evaluate(Pending& pending, int64_t step) {
  if (options_.eval_interval == 0 || step % options_.eval_interval != 0) return;
  begin(Phase::evaluation);
  const ComponentRange range("evaluation");
  double sum = 0;
  for (int64_t index = 0; index < options_.eval_iters; ++index)
    sum += state_.evaluate(data_.evaluation_batch(index));
  pending.record.evaluation_loss = sum / static_cast<double>(options_.eval_iters);
}

void Trainer::run_step(int64_t step) {
  const StepRange memory_steps = options_.memory_steps();
  const bool records_operators = operators_ && operators_->wants(step);
  if (memory_steps.contains(step) && !memory_)
    memory_ = std::make_unique<MemoryRecorder>(device_.torch(), known_tensors(state_.optimizer));
  Pending pending;
  pending.record.step = step;
  pending.record.profiled = records_operators ? Profiled::operators
                            : memory_         ? Profiled::memory
                                              : Profiled::no;
  meter_.start();
  if (memory_) memory_->begin_step(step);
  if (records_operators) operators_->begin_step(step);
  pending.loss = train(step);
  evaluate(pending, step);
  phase_range_.reset();
  clock_->end_step();
  if (memory_) memory_->end_step();
  const auto memory = meter_.read();
  pending.record.peak_memory_bytes = std::max(memory.peak_bytes, capture_peak_bytes_);
  pending.record.library_scratch_bytes = memory.scratch_peak_bytes;
  pending_.push_back(std::move(pending));
  if (records_operators) operators_->end_step();
  if (step == memory_steps.last) finish_memory();
}

void Trainer::finish_memory() {
  if (!memory_) return;
  memory_recording_ = memory_->finish();
  memory_.reset();
}

// What the ranks know together after a step, the same on all of them.
void Trainer::agree(StepRecord& record) {
  const double signalled = console::interrupted() ? 1 : 0;
  const at::Tensor values =
      at::tensor({record.loss, signalled}, at::TensorOptions(c10::ScalarType::Double))
          .to(group_->device().torch());
  group_->all_reduce(values).wait();
  const at::Tensor here = values.cpu();
  const double* const sums = here.const_data_ptr<double>();
  // Each rank's loss was its share of the mean; with the same samples the whole.
  record.loss = sums[0] * static_cast<double>(sample_ranks()) / group_->size();
  if (sums[1] == 0) return;
  interrupted_together_ = true;
  // What another rank was told counts here too, for the summary and the exit status.
  console::request_interrupt();
}

bool Trainer::report_pending() {
  const std::vector<PhaseTimes> times = clock_->collect();
  bool finite = true;
  for (size_t i = 0; i < std::min(times.size(), pending_.size()) && finite; ++i) {
    StepRecord& record = pending_[i].record;
    record.times = times[i];
    record.loss = pending_[i].loss.item<double>();
    if (group_) agree(record);
    // The sign of a NaN says nothing, and would be printed.
    if (std::isnan(record.loss)) record.loss = std::abs(record.loss);
    finite = std::isfinite(record.loss);
    report_(record);
  }
  pending_.clear();
  return finite;
}

void Trainer::run() {
  for (int64_t step = 1; step <= options_.num_steps && !interrupted(); ++step) {
    try {
      run_step(step);
    } catch (const distributed::RankLostError&) {
      throw;  // what is pending was not agreed on, and can no longer be
    } catch (...) {
      // Other ranks would take its words for those of their own next operation.
      if (group_) throw;
      // What ended before the fault is a result all the same, where the device still answers.
      const std::exception_ptr fault = std::current_exception();
      try {
        report_pending();
      } catch (const std::exception&) {
      }
      std::rethrow_exception(fault);
    }
    const bool is_due = !device_.is_gpu() || step % options_.log_interval == 0 ||
                        step == options_.num_steps || (!group_ && interrupted());
    if (is_due && !report_pending()) break;
  }
  report_pending();
  finish_memory();
}

}  // namespace tinyllama::training

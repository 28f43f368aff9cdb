#include "benchmarks/scaling/step_modes.hpp"

#include <chrono>
#include <ctime>
#include <memory>
#include <stdexcept>

namespace tinyllama::scaling {
namespace {

using Clock = std::chrono::steady_clock;

// Training on one batch stays finite.
constexpr double kLearningRate = 1e-3;

bool is_alone(StepMode mode) {
  return mode == StepMode::alone || mode == StepMode::alone_global;
}

bool sums_gradients(StepMode mode) {
  return mode == StepMode::no_overlap || mode == StepMode::overlap;
}

// In the very first AdamW step an update is the sign of its gradient, so that rounding decides
// where that is nearly 0. From here on it is a smooth function of it, and two ways of computing it
// can be compared; gradients as usual still move a weight by a good part of the learning rate,
// which narrow types can hold.
void leave_first_step(AdamW& optimizer) {
  for (const auto& [name, moment] : optimizer.second_moments()) moment.fill_(0x1p-20);
}

TokenBatch rows_of(const TokenBatch& all, int64_t first, int64_t count) {
  return {all.tokens.narrow(0, first, count).contiguous(),
          all.targets.narrow(0, first, count).contiguous()};
}

}  // namespace

std::string_view to_string(StepMode mode) {
  switch (mode) {
    case StepMode::alone:
    case StepMode::alone_global:  // told apart by the batch in the row's name
      return "alone";
    case StepMode::local:
      return "local";
    case StepMode::no_overlap:
      return "no_overlap";
    case StepMode::overlap:
      return "overlap";
    case StepMode::sharded:
      return "sharded";
    case StepMode::communication:
      return "communication";
  }
  throw std::logic_error("unknown step mode");
}

std::vector<StepMode> step_modes(const ScalingOptions& options, int ranks) {
  std::vector<StepMode> modes = {StepMode::alone};
  if (ranks > 1 && options.global_batch) modes.push_back(StepMode::alone_global);
  if (ranks > 1) modes.insert(modes.end(), {StepMode::local, StepMode::no_overlap});
  if (options.overlap || ranks == 1)
    modes.push_back(options.overlap ? StepMode::overlap : StepMode::no_overlap);
  if (options.shard_optimizer) modes.push_back(StepMode::sharded);
  if (ranks > 1) modes.push_back(StepMode::communication);
  return modes;
}

// A model of its own: its parameters lie in the buckets' memory.
struct StepSession::Sharded {
  Sharded(const ScalingOptions& options, distributed::ProcessGroup& group)
      : initializer(options.seed, options.dtype, group.device().torch()),
        model(ModelConfig(options.dimensions), options.variant, options.seq, initializer),
        parameters(model.parameters()),
        optimizer(group, parameters, options.variant, {.learning_rate = kLearningRate},
                  options.bucket_options()),
        none({}, Variant()),
        step(model, none) {
    leave_first_step(optimizer.of_shares());
  }

  TensorInitializer initializer;
  TinyLlama model;
  NamedTensors parameters;
  distributed::ShardedAdamW optimizer;
  AdamW none;  // the step's own: it updates nothing
  TrainStep step;
};

StepSession::StepSession(const ScalingOptions& options, distributed::ProcessGroup& group)
    : group_(group),
      initializer_(options.seed, options.dtype, group.device().torch()),
      model_(ModelConfig(options.dimensions), options.variant, options.seq, initializer_),
      optimizer_(model_.parameters(), options.variant, {.learning_rate = kLearningRate}),
      step_(model_, optimizer_),
      global_batch_(random_token_batch(model_.config(), options.batch * group.size(), options.seq,
                                       initializer_)),
      batch_(rows_of(global_batch_, options.batch * group.rank(), options.batch)),
      reducer_(group, optimizer_.parameters(), options.bucket_options()) {
  leave_first_step(optimizer_);
  if (options.shard_optimizer) sharded_ = std::make_unique<Sharded>(options, group);
}

StepSession::~StepSession() = default;

NamedTensors StepSession::sharded_parameters() const {
  if (!sharded_) throw std::logic_error("no sharded optimizer in this session");
  return sharded_->parameters;
}

void StepSession::compute_gradients() {
  // The mean over all samples is the sum over ranks of a share of each rank's mean.
  const at::Tensor loss = step_.forward(batch_, group_.size());
  reducer_.begin();
  step_.backward(loss);
  reducer_.finish();
}

void StepSession::compute_global_gradients() {
  const int64_t samples = batch_.tokens.size(0);
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (group_.is_first()) {
      const TokenBatch share = rows_of(global_batch_, samples * rank, samples);
      step_.backward(step_.forward(share, group_.size()));
    }
    group_.barrier();
  }
}

void StepSession::run_sharded() {
  const at::Tensor loss = sharded_->step.forward(batch_, group_.size());
  sharded_->optimizer.begin();
  sharded_->step.backward(loss);
  sharded_->optimizer.finish();
  sharded_->optimizer.step();
}

// Untimed.
void StepSession::prepare(StepMode mode) {
  if (mode == StepMode::sharded) return sharded_->optimizer.clear_gradients();
  if (mode != StepMode::communication) optimizer_.clear_gradients();
}

void StepSession::run(StepMode mode) {
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
    case StepMode::sharded:
      run_sharded();
      return;
    case StepMode::communication:
      reducer_.reduce_alone();
      return;
  }
}

// A plain step is measured without hooks.
void StepSession::attach(StepMode mode) {
  if (sums_gradients(mode)) {
    reducer_.set_overlap(mode == StepMode::overlap);
    reducer_.attach();
  }
  if (mode != StepMode::sharded) return;
  if (!sharded_) throw std::logic_error("no sharded optimizer in this session");
  sharded_->optimizer.attach();
}

void StepSession::detach() {
  reducer_.detach();
  if (sharded_) sharded_->optimizer.detach();
}

StepTimes StepSession::time_steps(StepMode mode, int64_t steps) {
  const instruments::Device& device = group_.device();
  attach(mode);
  if (mode == StepMode::communication) {
    // Gradients to sum have to be there.
    optimizer_.clear_gradients();
    step_.backward(step_.forward(batch_));
  }
  StepTimes times;
  std::clock_t ticks = 0;
  group_.barrier();
  for (int64_t step = 0; step < steps; ++step) {
    // All start together, so that a step's time is that of its slowest rank; and no rank waits for
    // more than a step of another.
    if (is_alone(mode) && !group_.is_first()) {
      group_.barrier();
      continue;
    }
    prepare(mode);
    device.synchronize();
    group_.barrier();
    const std::clock_t first_tick = std::clock();
    const auto start = Clock::now();
    run(mode);
    device.synchronize();
    times.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    ticks += std::clock() - first_tick;
  }
  group_.barrier();
  detach();
  if (!times.seconds.empty())
    times.cpu_seconds =
        static_cast<double>(ticks) / CLOCKS_PER_SEC / static_cast<double>(times.seconds.size());
  return times;
}

}  // namespace tinyllama::scaling

#include "benchmarks/training/trainer.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/distributed/rank_lost.hpp"
#include "model/component_range.hpp"

namespace tinyllama::training {

Trainer::Trainer(const TrainOptions& options, const instruments::Device& device, ModelState& state,
                 TokenData& data, Profilers profilers, DataParallel* parallel)
    : options_(options),
      device_(device),
      state_(state),
      data_(data),
      profilers_(std::move(profilers)),
      parallel_(parallel),
      clock_(device),
      meter_(device) {
  if (!options.variant.has(Switch::graph)) return;
  // The captured step reads its batch where it was captured; later ones are copied there.
  graph_batch_ = data.train_batch(1, 0);
  graph_batch_ = {graph_batch_.tokens.clone(), graph_batch_.targets.clone()};
  graph_.emplace(state.step, state.optimizer, graph_batch_);
  capture_peak_bytes_ = meter_.read().peak_bytes;
}

bool Trainer::is_due(int64_t step) const {
  return !device_.is_gpu() || step % options_.log_interval == 0 || step == options_.num_steps;
}

void Trainer::begin(Phase phase) {
  phase_range_.reset();
  if (memory_) memory_->begin_phase(phase);
  clock_.begin(phase);
  const bool is_range = phase == Phase::forward || phase == Phase::backward;
  if (!is_range || memory_ || !(profilers_.operators || profilers_.phase_ranges)) return;
  phase_range_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  phase_range_->before(to_string(phase).data());
}

at::Tensor Trainer::train(int64_t step) {
  if (graph_) {
    begin(Phase::data_loading);
    const TokenBatch batch = data_.train_batch(step, 0);
    graph_batch_.tokens.copy_(batch.tokens);
    graph_batch_.targets.copy_(batch.targets);
    begin(Phase::forward);
    return graph_->run().clone();
  }
  // The micro-batches of all ranks follow each other, as those of one process with all of them.
  const int64_t micro_steps = options_.gradient_accumulation_steps;
  const int64_t ranks = parallel_ ? parallel_->ranks() : 1;
  const int64_t first = parallel_ ? parallel_->rank() * micro_steps : 0;
  if (parallel_) parallel_->begin_step(step);
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
    compute_gradients(loss, micro + 1 == micro_steps);
    loss = loss.detach();
    total = total.defined() ? total + loss : loss;
  }
  if (memory_) memory_->mark_gradients(state_.optimizer.parameters());
  begin(Phase::optimizer);
  update_parameters();
  return total;
}

// Waiting for the sums over the ranks is a part of the backward that they overlap.
void Trainer::compute_gradients(const at::Tensor& loss, bool is_last) {
  if (parallel_ && is_last) parallel_->begin_last_backward();
  state_.step.backward(loss);
  if (parallel_ && is_last) parallel_->finish_last_backward();
}

void Trainer::update_parameters() {
  if (parallel_) {
    parallel_->update();
    begin(Phase::other);
    parallel_->clear_gradients();
    return;
  }
  state_.step.update();
  begin(Phase::other);
  state_.optimizer.clear_gradients();
}

// Ranks stop after the same step.
bool Trainer::interrupted() const {
  return parallel_ ? interrupted_together_ : console::interrupted();
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
  const bool records_operators = profilers_.operators && profilers_.operators->wants(step);
  if (memory_steps.contains(step) && !memory_)
    memory_ = std::make_unique<MemoryRecorder>(device_.torch(), known_tensors(state_.optimizer));
  Pending pending;
  pending.record.step = step;
  pending.record.profiled = records_operators ? Profiled::operators
                            : memory_         ? Profiled::memory
                                              : Profiled::no;
  meter_.start();
  if (memory_) memory_->begin_step(step);
  if (records_operators) profilers_.operators->begin_step(step);
  pending.loss = train(step);
  evaluate(pending, step);
  phase_range_.reset();
  clock_.end_step();
  if (memory_) memory_->end_step();
  const auto memory = meter_.read();
  pending.record.peak_memory_bytes = std::max(memory.peak_bytes, capture_peak_bytes_);
  pending.record.library_scratch_bytes = memory.scratch_peak_bytes;
  pending_.push_back(std::move(pending));
  if (records_operators) profilers_.operators->end_step();
  if (memory_ && step == memory_steps.last) {
    profilers_.keep_memory(memory_->finish());
    memory_.reset();
  }
}

bool Trainer::report_pending() {
  const std::vector<PhaseTimes> times = clock_.collect();
  bool finite = true;
  for (size_t i = 0; i < std::min(times.size(), pending_.size()) && finite; ++i) {
    Pending& pending = pending_[i];
    pending.record.times = times[i];
    pending.record.loss = pending.loss.item<double>();
    if (parallel_) {
      const DataParallel::Agreed agreed = parallel_->agree(pending.record.loss);
      pending.record.loss = agreed.loss;
      // What another rank was told counts here too, for the summary and the exit status.
      if (agreed.interrupted) console::request_interrupt();
      interrupted_together_ = interrupted_together_ || agreed.interrupted;
    }
    // The sign of a NaN says nothing, and would be printed.
    if (std::isnan(pending.record.loss)) pending.record.loss = std::abs(pending.record.loss);
    finite = std::isfinite(pending.record.loss);
    report_(pending.record);
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
      if (parallel_) throw;
      // What ended before the fault is a result all the same, where the device still answers.
      const std::exception_ptr fault = std::current_exception();
      try {
        report_pending();
      } catch (const std::exception&) {
      }
      std::rethrow_exception(fault);
    }
    if ((is_due(step) || (!parallel_ && interrupted())) && !report_pending()) break;
  }
  report_pending();
  if (memory_) {
    profilers_.keep_memory(memory_->finish());
    memory_.reset();
  }
}

}  // namespace tinyllama::training

#include "benchmarks/training/operator_recorder.hpp"

#include <fmt/format.h>

#include <chrono>

#include "benchmarks/training/component_names.hpp"

namespace tinyllama::training {
namespace {

std::string trace_name(int64_t first, int64_t last) {
  return fmt::format("trace_step_{}_{}.json", first, last);
}

// <worker>.<nanoseconds>.pt.trace.json is what TensorBoard's plugin looks for.
std::string tensorboard_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("tiny_llama_train.{}.pt.trace.json",
                     std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// Where a folder takes no second name for a file; never half a copy.
void copy_whole(const std::filesystem::path& from, const std::filesystem::path& to) {
  auto part = to;
  part += ".part";
  try {
    std::filesystem::copy_file(from, part);
    std::filesystem::rename(part, to);
  } catch (...) {
    std::error_code absent;
    std::filesystem::remove(part, absent);
    throw;
  }
}

}  // namespace

OperatorRecorder::OperatorRecorder(const TrainOptions& options, const instruments::Device& device,
                                   const std::filesystem::path& folder)
    : operator_steps_(options.operator_steps()),
      flops_steps_(options.flops_steps()),
      device_(device),
      detail_({.shapes = options.profile_operators, .memory = true}),
      folder_(folder),
      statistics_(device.is_gpu(),
                  {.shapes = options.profile_operators, .stacks = options.profile_stacks}),
      flops_statistics_(device.is_gpu(), {}) {
  if (operator_steps_.empty()) return;
  trace_ =
      std::make_unique<TraceFile>(folder / trace_name(operator_steps_.first, operator_steps_.last));
}

OperatorRecorder::~OperatorRecorder() {
  // In the order in which they were opened, should a step have thrown.
  step_range_.reset();
  session_.reset();
  tracker_.reset();
}

bool OperatorRecorder::wants(int64_t step) const {
  return operator_steps_.contains(step) || flops_steps_.contains(step);
}

void OperatorRecorder::begin_step(int64_t step) {
  step_ = step;
  tracker_ = std::make_unique<ComponentTracker>();
  session_ = std::make_unique<instruments::KinetoSession>(device_, detail_);
  step_range_name_ = fmt::format("{}{}", kStepRangePrefix, step);
  step_range_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  step_range_->before(step_range_name_.c_str());
}

void OperatorRecorder::end_step() {
  device_.synchronize();
  step_range_.reset();
  const auto result = session_->stop();
  session_.reset();
  const StepEvents events = read_step_events(
      *result, device_,
      [&](uint64_t thread, int64_t sequence) { return tracker_->of_node(thread, sequence); });
  tracker_.reset();
  if (flops_steps_.contains(step_)) flops_statistics_.add(events);
  if (!operator_steps_.contains(step_)) return;
  statistics_.add(events);
  last_recorded_ = step_;
  append_to_trace(*result);
}

void OperatorRecorder::append_to_trace(torch::autograd::profiler::ProfilerResult& result) {
  const auto part = folder_ / fmt::format(".trace_step_{}.json", step_);
  const auto discard_part = [&] {
    std::error_code absent;
    std::filesystem::remove(part, absent);
    // Kineto fills this one first, and leaves it behind where the disk is full.
    std::filesystem::remove(part.string() + ".tmp", absent);
  };
  try {
    result.save(part.string());
    trace_->append(part);
  } catch (...) {
    discard_part();
    trace_.reset();  // what it holds so far must not become a file
    throw;
  }
  discard_part();
}

std::vector<std::string> OperatorRecorder::finish() {
  if (!trace_ || last_recorded_ == 0) return {};
  const auto path = folder_ / trace_name(operator_steps_.first, last_recorded_);
  trace_->finish(path);
  trace_.reset();
  const auto copy = folder_ / tensorboard_name();
  std::error_code refused;
  std::filesystem::create_hard_link(path, copy, refused);
  if (refused) copy_whole(path, copy);
  return {path.filename().string(), copy.filename().string()};
}

Json OperatorRecorder::to_json() const {
  if (statistics_.steps() == 0) return nullptr;
  Json json = {{"first_step", operator_steps_.first}, {"last_step", last_recorded_}};
  json.update(statistics_.to_json());
  return json;
}

const OperatorStatistics* OperatorRecorder::flops_statistics() const {
  return flops_statistics_.steps() > 0 ? &flops_statistics_ : nullptr;
}

}  // namespace tinyllama::training

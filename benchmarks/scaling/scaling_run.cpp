#include "benchmarks/scaling/scaling_run.hpp"

#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <optional>

#include "benchmarks/console/interrupt.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "benchmarks/scaling/collectives.hpp"
#include "benchmarks/scaling/run_control.hpp"
#include "benchmarks/scaling/scaling_results.hpp"
#include "benchmarks/scaling/step_proof.hpp"
#include "benchmarks/scaling/step_rounds.hpp"
#include "model/memory_cost.hpp"

namespace tinyllama::scaling {
namespace {

using console::ExitCode;

// Said before the first allocation, and not in the words of an allocator. A sharded step has a
// model of its own beside the other.
void refuse_for_memory(const ScalingOptions& options, const instruments::Device& device,
                       int ranks) {
  const int64_t step = full_step_memory(options.workload()).peak();
  const int64_t weights =
      count_parameters(ModelConfig(options.dimensions)) * storage_bytes(options.dtype);
  const int64_t needed = step + (options.shard_optimizer ? 3 * weights : 0) + weights;
  const int64_t free = device.free_memory_bytes();
  if (needed <= free) return;
  throw std::invalid_argument(
      fmt::format("--size {} --batch {} --seq {}: a step on one of {} ranks needs {} of memory, "
                  "and {} is free on "
                  "{}; take a smaller batch or size",
                  options.size, options.batch, options.seq, ranks, console::format_bytes(needed),
                  console::format_bytes(free), device.description().name));
}

std::vector<int64_t> planned_buckets(const ScalingOptions& options,
                                     distributed::ProcessGroup& group) {
  TensorInitializer initializer(options.seed, options.dtype, group.device().torch());
  const TinyLlama model(ModelConfig(options.dimensions), options.variant, options.seq, initializer);
  const NamedTensors parameters = model.parameters();
  return distributed::bucket_bytes(parameters,
                                   distributed::plan_buckets(parameters, options.bucket_bytes()));
}

class ScalingRun {
 public:
  ScalingRun(const ScalingOptions& options, distributed::ProcessGroup& group)
      : options_(options),
        group_(group),
        buckets_(planned_buckets(options, group)),
        results_(options, group, buckets_) {}

  ExitCode run() {
    if (options_.measures("full_step") && !measure_full_step()) return ExitCode::failed;
    if (!any_rank_interrupted(group_)) {
      group_.enter("collectives");
      results_.add(measure_collectives(options_, group_, buckets_));
    }
    const bool interrupted = any_rank_interrupted(group_);
    group_.barrier();
    if (group_.is_first()) std::cout << results_.text() << std::flush;
    return interrupted ? ExitCode::interrupted : ExitCode::ok;
  }

 private:
  bool measure_full_step() {
    StepSession session(options_, group_);
    StepProof proof;
    if (options_.verify) {
      proof = prove_step(session, options_, group_);
      if (!proof.failure.empty()) {
        say(group_, proof.failure);
        return false;
      }
      say(group_, fmt::format("proved: gradients within {:.1e} of one process with all samples",
                              proof.max_rel_error));
    }
    results_.add(measure_steps(session, options_, group_, proof));
    return true;
  }

  const ScalingOptions& options_;
  distributed::ProcessGroup& group_;
  std::vector<int64_t> buckets_;
  ScalingResults results_;
};

}  // namespace

ExitCode run_scaling(const ScalingOptions& options, const distributed::LaunchEnvironment& where,
                     const instruments::Device& device) {
  refuse_for_memory(options, device, where.world_size);
  console::install_interrupt_handler();
  const std::chrono::milliseconds timeout(static_cast<int64_t>(options.timeout_seconds * 1e3));
  distributed::ProcessGroup group(where, device, timeout, agreement_of(options));
  say(group, fmt::format("{} ranks, {}, started by {}", group.size(), group.backend_name(),
                         to_string(where.launcher)));
  return ScalingRun(options, group).run();
}

}  // namespace tinyllama::scaling

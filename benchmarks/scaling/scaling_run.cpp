#include "benchmarks/scaling/scaling_run.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <utility>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/console/exit.hpp"
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

// What a rank holds at its most: a step, and the copies that messages are made in. A sharded step
// has a model of its own beside the other, with its messages.
int64_t rank_bytes(const ScalingOptions& options, bool has_global_batch) {
  Workload workload = options.workload();
  if (has_global_batch) workload.batch = *options.global_batch;
  const int64_t weights =
      count_parameters(ModelConfig(options.dimensions)) * storage_bytes(options.dtype);
  return full_step_memory(workload).peak() + (options.shard_optimizer ? 6 : 2) * weights;
}

// Said before the first allocation, and not in the words of an allocator. Ranks of one host share
// its memory.
void refuse_for_memory(const ScalingOptions& options, const instruments::Device& device,
                       const distributed::LaunchEnvironment& where) {
  const int sharing = device.is_gpu() ? 1 : where.local_size;
  const int64_t needed = rank_bytes(options, options.global_batch.has_value()) +
                         (sharing - 1) * rank_bytes(options, false);
  const int64_t free = device.free_memory_bytes();
  if (needed <= free) return;
  throw std::invalid_argument(fmt::format(
      "--size {} --batch {} --seq {}: steps on {} ranks of this host need {} of memory, and {} is "
      "free on {}; take fewer ranks, a smaller batch or size",
      options.size, options.batch, options.seq, sharing, console::format_bytes(needed),
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

  // What was measured before a fault is printed too.
  ExitCode run() {
    try {
      const ExitCode code = measure();
      print(code == ExitCode::failed);
      return code;
    } catch (...) {
      print(true);
      throw;
    }
  }

 private:
  ExitCode measure() {
    if (options_.measures("full_step") && !measure_full_step()) return ExitCode::failed;
    if (!any_rank_interrupted(group_)) {
      group_.enter("collectives");
      const std::string failure = measure_collectives(options_, group_, buckets_, keep_);
      if (!failure.empty()) {
        say(group_, failure);
        return ExitCode::failed;
      }
    }
    const bool interrupted = any_rank_interrupted(group_);
    group_.barrier();
    return interrupted ? ExitCode::interrupted : ExitCode::ok;
  }

  void print(bool is_failed) const {
    if (!group_.is_first() || (is_failed && results_.is_empty())) return;
    std::cout << results_.text() << std::flush;
  }

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
    measure_steps(session, options_, group_, proof, keep_);
    return true;
  }

  const ScalingOptions& options_;
  distributed::ProcessGroup& group_;
  std::vector<int64_t> buckets_;
  ScalingResults results_;
  KeepRows keep_ = [this](std::vector<MeasuredRow> rows) { results_.keep(std::move(rows)); };
};

}  // namespace

ExitCode run_scaling(const ScalingOptions& options, const distributed::LaunchEnvironment& where,
                     const instruments::Device& device) {
  refuse_for_memory(options, device, where);
  if (where.rank == 0) console::check_output_file("--benchmark_out", options.out_file);
  console::install_interrupt_handler();
  distributed::ProcessGroup group(where, device, options.timeout(), agreement_of(options));
  group.on_loss([](const std::string& what) {
    fmt::print(stderr, "tiny_llama_scaling: {}\n", what);
    std::fflush(stderr);
  });
  say(group, fmt::format("{} ranks, {}, started by {}", group.size(), group.backend_name(),
                         to_string(where.launcher)));
  return ScalingRun(options, group).run();
}

}  // namespace tinyllama::scaling

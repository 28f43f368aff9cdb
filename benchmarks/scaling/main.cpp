// tiny_llama_scaling: one rank of a data-parallel run.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/distributed/gradient_reducer.hpp"
#include "benchmarks/instruments/bring_up.hpp"
#include "benchmarks/scaling/collectives.hpp"
#include "benchmarks/scaling/shared_steps.hpp"
#include "benchmarks/scaling/steps.hpp"
#include "core/data_folder.hpp"
#include "core/file_io.hpp"
#include "model/memory_prediction.hpp"
#include "model/tiny_llama.hpp"
#include "model/variant.hpp"

namespace tinyllama::scaling {
namespace {

using console::ExitCode;
using distributed::LaunchEnvironment;

// What a rank holds at its most: a step, and the copies that messages are made in; and what
// --share's way has beside it.
int64_t rank_bytes(const ScalingOptions& options, int ranks, bool has_global_batch,
                   c10::DeviceType device) {
  Workload workload = options.workload();
  if (has_global_batch) workload.batch = *options.global_batch;
  const int64_t weights =
      count_parameters(ModelConfig(options.dimensions)) * storage_bytes(options.dtype);
  return predict_step_memory(workload, device).peak() + 2 * weights +
         shared_step_bytes(options, ranks, device);
}

void refuse_for_memory(const ScalingOptions& options, const instruments::Device& device,
                       const LaunchEnvironment& where) {
  const int sharing = where.ranks_sharing(device);
  const auto type = device.torch().type();
  const auto first = static_cast<double>(
      rank_bytes(options, where.world_size, options.global_batch.has_value(), type));
  const auto other = static_cast<double>(rank_bytes(options, where.world_size, false, type));
  distributed::refuse_for_memory(where, device, first + (sharing - 1) * other,
                                 fmt::format("--size {} --batch {} --seq {}: a step", options.size,
                                             options.batch, options.seq),
                                 "take fewer ranks, a smaller batch or size");
  if (!options.max_bytes) return;
  // the vector and a share of it; the proof counts elements in three vectors of 64 bits
  const double copies =
      options.verify ? 6 + 24.0 / static_cast<double>(storage_bytes(options.dtype)) : 2;
  distributed::refuse_for_memory(where, device,
                                 sharing * copies * static_cast<double>(*options.max_bytes),
                                 fmt::format("--max-bytes {}: a message", *options.max_bytes),
                                 "take a smaller one or fewer ranks");
}

std::vector<int64_t> planned_buckets(const ScalingOptions& options, ProcessGroup& group) {
  TensorInitializer initializer(options.seed, options.dtype, group.device().torch());
  const TinyLlama model(ModelConfig(options.dimensions), options.variant, options.seq, initializer);
  const NamedTensors parameters = model.parameters();
  return distributed::message_bytes(parameters, options.bucket_options());
}

ExitCode measure(const ScalingOptions& options, ProcessGroup& group, console::Progress& progress,
                 const std::vector<int64_t>& buckets, ScalingResults& results) {
  std::string failure;
  if (options.measures("full_step")) failure = measure_steps(options, group, progress, results);
  if (failure.empty() && !any_rank_interrupted(group)) {
    group.enter("collectives");
    failure = measure_collectives(options, group, progress, buckets, results);
  }
  if (!failure.empty()) {
    progress.say(failure);
    return ExitCode::failed;
  }
  const bool interrupted = any_rank_interrupted(group);
  group.barrier();
  return interrupted ? ExitCode::interrupted : ExitCode::ok;
}

// Meets the other ranks, proves, measures, writes; what was measured before a fault is written and
// printed too.
ExitCode run_scaling(const ScalingOptions& options, const LaunchEnvironment& where,
                     const instruments::Device& device) {
  refuse_for_memory(options, device, where);
  if (where.rank == 0) check_output_file("--benchmark_out", options.out_file);
  console::install_interrupt_handler();
  ProcessGroup group(where, device, options.timeout(), agreement_of(options));
  group.on_loss([](const std::string& what) {
    fmt::print(stderr, "tiny_llama_scaling: {}\n", what);
    std::fflush(stderr);
  });
  console::Progress progress("round", group.is_first());
  progress.say(fmt::format("{} ranks, {}, started by {}", group.size(), group.backend_name(),
                           to_string(where.launcher)));
  const std::vector<int64_t> buckets = planned_buckets(options, group);
  ScalingResults results(options, group, buckets);
  const auto print = [&](bool is_failed) {
    progress.clear();
    if (!group.is_first() || (is_failed && results.is_empty())) return;
    std::cout << results.text() << std::flush;
  };
  try {
    const ExitCode code = measure(options, group, progress, buckets, results);
    print(code == ExitCode::failed);
    return code;
  } catch (...) {
    print(true);
    throw;
  }
}

ExitCode run(int argc, char** argv, const LaunchEnvironment& where) {
  auto options = parse_scaling_options(argc, argv, where.world_size,
                                       console::SizeFiles::in(data_folder() / "fixtures"));
  if (!options) return ExitCode::ok;
  const instruments::BringUp machine("tiny_llama_scaling", argv,
                                     distributed::machine_choice(*options, where));
  options->variant = distributed::variant_of_ranks(
      machine.resolve(options->variant, options->dtype), options->share);
  instruments::start_computing();
  return run_scaling(*options, where, machine.device());
}

}  // namespace
}  // namespace tinyllama::scaling

int main(int argc, char** argv) {
  return tinyllama::distributed::run_rank("tiny_llama_scaling", [&](const auto& where) {
    return tinyllama::scaling::run(argc, argv, where);
  });
}

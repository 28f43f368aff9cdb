// tiny_llama_scaling: one rank of a data-parallel run.
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <stdexcept>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/distributed/gradient_reducer.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/library_choices.hpp"
#include "benchmarks/scaling/collectives.hpp"
#include "benchmarks/scaling/steps.hpp"
#include "model/memory_prediction.hpp"
#include "model/tiny_llama.hpp"
#include "model/variant.hpp"

namespace tinyllama::distributed {
namespace {

using console::ExitCode;

// What a rank holds at its most: a step, and the copies that messages are made in. A sharded step
// has a model of its own beside the other, with its messages.
int64_t rank_bytes(const ScalingOptions& options, bool has_global_batch, c10::DeviceType device) {
  Workload workload = options.workload();
  if (has_global_batch) workload.batch = *options.global_batch;
  const int64_t weights =
      count_parameters(ModelConfig(options.dimensions)) * storage_bytes(options.dtype);
  return predict_step_memory(workload, device).peak() + (options.shard_optimizer ? 6 : 2) * weights;
}

// Said before the first allocation, and not in the words of an allocator. Ranks of one host share
// its memory.
void refuse_for_memory(const ScalingOptions& options, const instruments::Device& device,
                       const LaunchEnvironment& where) {
  const int sharing = device.is_gpu() ? 1 : where.local_size;
  const auto type = device.torch().type();
  const auto free = static_cast<double>(device.free_memory_bytes());
  // in double, which no number of ranks makes wrap around
  const auto refuse_above = [&](double needed, const std::string& what, const char* remedy) {
    if (needed <= free) return;
    throw std::invalid_argument(
        fmt::format("{} on {} ranks of this host need {}B of memory, and {}B is free on {}; {}",
                    what, sharing, console::format_count(needed), console::format_count(free),
                    device.description().name, remedy));
  };
  const auto first =
      static_cast<double>(rank_bytes(options, options.global_batch.has_value(), type));
  const auto other = static_cast<double>(rank_bytes(options, false, type));
  refuse_above(
      first + (sharing - 1) * other,
      fmt::format("--size {} --batch {} --seq {}: steps", options.size, options.batch, options.seq),
      "take fewer ranks, a smaller batch or size");
  if (!options.max_bytes) return;
  // the vector and a share of it; the proof counts elements in three vectors of 64 bits
  const double copies =
      options.verify ? 6 + 24.0 / static_cast<double>(storage_bytes(options.dtype)) : 2;
  refuse_above(sharing * copies * static_cast<double>(*options.max_bytes),
               fmt::format("--max-bytes {}: messages", *options.max_bytes),
               "take a smaller one or fewer ranks");
}

std::vector<int64_t> planned_buckets(const ScalingOptions& options, ProcessGroup& group) {
  TensorInitializer initializer(options.seed, options.dtype, group.device().torch());
  const TinyLlama model(ModelConfig(options.dimensions), options.variant, options.seq, initializer);
  const NamedTensors parameters = model.parameters();
  return bucket_bytes(parameters, plan_buckets(parameters, options.bucket_bytes()));
}

ExitCode measure(const ScalingOptions& options, ProcessGroup& group,
                 const std::vector<int64_t>& buckets, ScalingResults& results) {
  std::string failure;
  if (options.measures("full_step")) failure = measure_steps(options, group, results);
  if (failure.empty() && !any_rank_interrupted(group)) {
    group.enter("collectives");
    failure = measure_collectives(options, group, buckets, results);
  }
  if (!failure.empty()) {
    say(group, failure);
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
  if (where.rank == 0) console::check_output_file("--benchmark_out", options.out_file);
  console::install_interrupt_handler();
  ProcessGroup group(where, device, options.timeout(), agreement_of(options));
  group.on_loss([](const std::string& what) {
    fmt::print(stderr, "tiny_llama_scaling: {}\n", what);
    std::fflush(stderr);
  });
  say(group, fmt::format("{} ranks, {}, started by {}", group.size(), group.backend_name(),
                         to_string(where.launcher)));
  const std::vector<int64_t> buckets = planned_buckets(options, group);
  ScalingResults results(options, group, buckets);
  const auto print = [&](bool is_failed) {
    if (!group.is_first() || (is_failed && results.is_empty())) return;
    std::cout << results.text() << std::flush;
  };
  try {
    const ExitCode code = measure(options, group, buckets, results);
    print(code == ExitCode::failed);
    return code;
  } catch (...) {
    print(true);
    throw;
  }
}

ExitCode run(int argc, const char* const* argv, const LaunchEnvironment& where) {
  auto options = parse_scaling_options(argc, argv, where.world_size,
                                       TINY_LLAMA_SOURCE_DIR "/fixtures/problem_sizes.json");
  if (!options) return ExitCode::ok;
  // before the device is asked: few threads do not reach all caches
  instruments::set_threads(options->threads);
  const auto device = select_device(options->device, where);
  const c10::DeviceGuard current(device.torch());
  instruments::choose_libraries(device, {});
  const DeviceTraits traits = device_traits(device.torch());
  if (!traits.no_own_kernels.empty() && where.rank == 0)
    fmt::print(stderr, "tiny_llama_scaling: note: {}\n", traits.no_own_kernels);
  const std::string refusal = refuse_variant(options->variant, options->dtype, traits);
  if (!refusal.empty()) {
    throw std::invalid_argument(
        fmt::format("--variant '{}': {}", options->variant.name(), refusal));
  }
  options->variant = variant_of_ranks(resolved(options->variant, options->dtype, traits));
  instruments::host_allocator::install();
  instruments::start_autograd_threads();
  return run_scaling(*options, where, device);
}

}  // namespace
}  // namespace tinyllama::distributed

int main(int argc, char** argv) {
  using namespace tinyllama;
  return console::run_program("tiny_llama_scaling", [&] {
    return distributed::run_rank("tiny_llama_scaling", [&](const auto& where) {
      // The ranks of a host would all take its first processors.
      if (where.world_size == 1) instruments::pin_openmp_threads(argv);
      return distributed::run(argc, argv, where);
    });
  });
}

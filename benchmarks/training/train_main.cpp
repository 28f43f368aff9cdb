// tiny_llama_train: options -> train.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <iostream>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/distributed/run_rank.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/thread_pinning.hpp"
#include "benchmarks/training/data_parallel.hpp"
#include "benchmarks/training/train_options.hpp"
#include "benchmarks/training/train_run.hpp"
#include "benchmarks/training/validate_setup.hpp"
#include "model/variant.hpp"

namespace tinyllama {
namespace {

using console::ExitCode;

const std::filesystem::path kFixtures = TINY_LLAMA_SOURCE_DIR "/fixtures";

void make_deterministic() {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // cuBLAS wants it said
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
}

// A captured step is replayed whole: nobody sees its parts. What `optimized` chose may be left out;
// what the user named is refused.
void refuse_for_graph(training::TrainOptions& options) {
  if (!options.variant.has(Switch::graph)) return;
  const char* const in_the_way = options.gradient_accumulation_steps > 1
                                     ? "--gradient-accumulation-steps"
                                 : options.profile_memory ? "--profile-memory"
                                 : options.profile_flops  ? "--enable-deepspeed-flops"
                                                          : nullptr;
  if (in_the_way == nullptr) return;
  if (options.variant.is_optimized()) {
    options.variant = options.variant.without(Switch::graph).named_optimized();
    return;
  }
  throw std::invalid_argument(
      fmt::format("{}: cannot be had with the switch graph of --variant '{}', which replays a step "
                  "of one batch as a whole; leave one of them out",
                  in_the_way, options.variant.name()));
}

ExitCode report_setup(const training::TrainOptions& options) {
  const auto device = [&]() -> training::SelectedDevice {
    try {
      return instruments::Device::select(options.device);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  }();
  if (options.threads) at::set_num_threads(*options.threads);
  auto lines = training::validate_setup(device, options.workload(), options.folder());
  for (const auto& folder : {options.output_folder, options.save_weights_folder}) {
    if (!folder.empty() && folder != options.folder())
      lines.push_back(training::check_output_folder(folder));
  }
  if (const auto* found = std::get_if<instruments::Device>(&device)) {
    const std::string refusal =
        refuse_variant(options.variant, options.dtype, device_traits(found->torch().type()));
    lines.push_back({refusal.empty() ? training::SetupStatus::ok : training::SetupStatus::failed,
                     "variant", refusal.empty() ? options.variant.name() : refusal});
  }
  for (const auto& line : lines) std::cout << training::to_text(line) << "\n";
  return training::usable(lines) ? ExitCode::ok : ExitCode::failed;
}

// Ranks share one device each, one console and one set of files, which are rank 0's.
void take_part(training::TrainOptions& options, const distributed::LaunchEnvironment& where) {
  options.rank = where.rank;
  options.ranks = where.world_size;
  const char* const in_the_way = options.profile_memory    ? "--profile-memory"
                                 : options.profile_pytorch ? "--enable-pytorch-profiler"
                                 : options.profile_flops   ? "--enable-deepspeed-flops"
                                                           : nullptr;
  if (in_the_way != nullptr && options.shard_optimizer) {
    throw std::invalid_argument(fmt::format(
        "{} with --shard-optimizer: the profilers know whole optimizers only; leave one out",
        in_the_way));
  }
  options.variant = distributed::variant_of_ranks(options.variant);
  if (where.rank == 0) return;
  options.output_folder.clear();
  options.save_weights_folder.clear();
  options.profile_pytorch = options.profile_memory = options.profile_flops = false;
  options.profile_operators = options.profile_stacks = false;
  std::cout.setstate(std::ios_base::failbit);
}

ExitCode run(int argc, const char* const* argv, const distributed::LaunchEnvironment& where) {
  auto options = training::parse_train_options(argc, argv, kFixtures / "problem_sizes.json");
  if (!options) return ExitCode::ok;
  if (options->validate_setup) return report_setup(*options);
  const auto device = distributed::select_device(options->device, where);
  const DeviceTraits traits = device_traits(device.torch().type());
  const std::string refusal = refuse_variant(options->variant, options->dtype, traits);
  if (!refusal.empty()) {
    throw std::invalid_argument(
        fmt::format("--variant '{}': {}", options->variant.name(), refusal));
  }
  options->variant = resolved(options->variant, options->dtype, traits);
  refuse_for_graph(*options);
  if (where.world_size > 1) {
    take_part(*options, where);
  } else if (options->shard_optimizer) {
    throw std::invalid_argument(
        "--shard-optimizer: one process has nobody to share the optimizer's state with; start "
        "several with torchrun, mpirun or srun");
  }
  instruments::host_allocator::install();
  instruments::start_autograd_threads();
  if (options->threads) at::set_num_threads(*options->threads);
  if (options->deterministic) make_deterministic();
  const std::vector<std::string> command(argv, argv + argc);
  const training::TrainRunPaths paths = {kFixtures / "device_peaks.json"};
  if (where.world_size == 1) return training::run_training(*options, device, command, paths);
  distributed::ProcessGroup group(where, device, options->timeout(),
                                  training::agreement_of(*options));
  return training::run_training(*options, device, command, paths, &group);
}

}  // namespace
}  // namespace tinyllama

int main(int argc, char** argv) {
  using namespace tinyllama;
  return console::run_program("tiny_llama_train", [&] {
    return distributed::run_rank("tiny_llama_train", [&](const auto& where) {
      // The ranks of a host would all take its first processors.
      if (where.world_size == 1) instruments::pin_openmp_threads(argv);
      return run(argc, argv, where);
    });
  });
}

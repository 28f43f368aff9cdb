// tiny_llama_scaling: one rank of a data-parallel run.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <stdexcept>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/distributed/run_rank.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/thread_pinning.hpp"
#include "benchmarks/scaling/scaling_run.hpp"
#include "model/variant.hpp"

namespace tinyllama {
namespace {

using console::ExitCode;

ExitCode run(int argc, const char* const* argv, const distributed::LaunchEnvironment& where) {
  auto options = scaling::parse_scaling_options(
      argc, argv, where.world_size, TINY_LLAMA_SOURCE_DIR "/fixtures/problem_sizes.json");
  if (!options) return ExitCode::ok;
  const auto device = distributed::select_device(options->device, where);
  const DeviceTraits traits = device_traits(device.torch().type());
  const std::string refusal = refuse_variant(options->variant, options->dtype, traits);
  if (!refusal.empty()) {
    throw std::invalid_argument(
        fmt::format("--variant '{}': {}", options->variant.name(), refusal));
  }
  options->variant =
      distributed::variant_of_ranks(resolved(options->variant, options->dtype, traits));
  instruments::host_allocator::install();
  instruments::start_autograd_threads();
  if (options->threads) at::set_num_threads(*options->threads);
  return scaling::run_scaling(*options, where, device);
}

}  // namespace
}  // namespace tinyllama

int main(int argc, char** argv) {
  using namespace tinyllama;
  return console::run_program("tiny_llama_scaling", [&] {
    return distributed::run_rank("tiny_llama_scaling", [&](const auto& where) {
      // The ranks of a host would all take its first processors.
      if (where.world_size == 1) instruments::pin_openmp_threads(argv);
      return run(argc, argv, where);
    });
  });
}

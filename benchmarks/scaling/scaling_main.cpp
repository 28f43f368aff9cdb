// tiny_llama_scaling: one rank of a data-parallel run.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/distributed/rank_lost.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/thread_pinning.hpp"
#include "benchmarks/scaling/scaling_run.hpp"
#include "model/optimized.hpp"

namespace tinyllama {
namespace {

using console::ExitCode;

// Unless the user names one, each rank of a host takes the GPU of its number.
instruments::Device select_device(const std::string& text,
                                  const distributed::LaunchEnvironment& where) {
  const auto device = instruments::Device::select(text);
  if (!device.is_gpu() || text.find(':') != std::string::npos) return device;
  return instruments::Device::select(
      fmt::format("{}:{}", to_string(device.backend()), where.local_rank));
}

ExitCode run(int argc, const char* const* argv, const distributed::LaunchEnvironment& where) {
  auto options = scaling::parse_scaling_options(
      argc, argv, where.world_size, TINY_LLAMA_SOURCE_DIR "/fixtures/problem_sizes.json");
  if (!options) return ExitCode::ok;
  const auto device = select_device(options->device, where);
  const DeviceTraits traits = device_traits(device.torch().type());
  const std::string refusal = refuse_variant(options->variant, options->dtype, traits);
  if (!refusal.empty()) {
    throw std::invalid_argument(
        fmt::format("--variant '{}': {}", options->variant.name(), refusal));
  }
  options->variant = resolved(options->variant, options->dtype, traits);
  instruments::host_allocator::install();
  if (options->threads) at::set_num_threads(*options->threads);
  return scaling::run_scaling(*options, where, device);
}

}  // namespace
}  // namespace tinyllama

int main(int argc, char** argv) {
  using namespace tinyllama;
  return console::run_program("tiny_llama_scaling", [&] {
    const auto where = distributed::read_launch_environment();
    // The ranks of a host would all take its first processors.
    if (where.world_size == 1) instruments::pin_openmp_threads(argv);
    try {
      return run(argc, argv, where);
    } catch (const distributed::RankLostError& error) {
      fmt::print(stderr, "tiny_llama_scaling: {}\n", error.what());
      std::fflush(nullptr);
      // Destructors would wait for operations that the lost rank will never take part in.
      std::_Exit(static_cast<int>(ExitCode::failed));
    } catch (const std::exception& error) {
      if (!where.is_distributed()) throw;
      throw std::invalid_argument(fmt::format("{}: {}", where.name(), error.what()));
    }
  });
}

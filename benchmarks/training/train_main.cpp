// tiny_llama_train: options -> train.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>

#include "benchmarks/console/command_line.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/thread_pinning.hpp"
#include "benchmarks/training/train_options.hpp"
#include "benchmarks/training/train_run.hpp"
#include "benchmarks/training/validate_setup.hpp"
#include "model/optimized.hpp"

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

ExitCode report_setup(const training::TrainOptions& options) {
  const auto device = [&]() -> training::SelectedDevice {
    try {
      return instruments::Device::select(options.device);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  }();
  const auto lines = training::validate_setup(device, options.workload(), options.folder());
  for (const auto& line : lines) std::cout << training::to_text(line) << "\n";
  return training::usable(lines) ? ExitCode::ok : ExitCode::failed;
}

ExitCode run(int argc, const char* const* argv) {
  auto options = training::parse_train_options(argc, argv, kFixtures / "problem_sizes.json");
  if (!options) return ExitCode::ok;
  if (options->validate_setup) return report_setup(*options);
  const auto device = instruments::Device::select(options->device);
  const DeviceTraits traits = device_traits(device.torch().type());
  const std::string refusal = refuse_variant(options->variant, options->dtype, traits);
  if (!refusal.empty()) {
    throw std::invalid_argument(
        fmt::format("--variant '{}': {}", options->variant.name(), refusal));
  }
  options->variant = resolved(options->variant, options->dtype, traits);
  instruments::host_allocator::install();
  if (options->threads) at::set_num_threads(*options->threads);
  if (options->deterministic) make_deterministic();
  return training::run_training(*options, device, {argv, argv + argc},
                                {kFixtures / "device_peaks.json"});
}

}  // namespace
}  // namespace tinyllama

int main(int argc, char** argv) {
  tinyllama::instruments::pin_openmp_threads(argv);
  return tinyllama::console::run_program("tiny_llama_train",
                                         [&] { return tinyllama::run(argc, argv); });
}

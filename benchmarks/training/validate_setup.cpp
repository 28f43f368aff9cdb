#include "benchmarks/training/validate_setup.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>

#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/system_sampler.hpp"
#include "core/file_io.hpp"
#include "model/memory_prediction.hpp"

namespace tinyllama::training {
namespace {

namespace fs = std::filesystem;
using instruments::Device;

double gibibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

SetupLine check_device(const SelectedDevice& selected) {
  if (const auto* error = std::get_if<std::string>(&selected)) {
    return {SetupStatus::failed, "device", *error};
  }
  const Device& device = std::get<Device>(selected);
  const auto& description = device.description();
  return {
      SetupStatus::ok, "device",
      fmt::format("{} ({}, {} {})", description.name, description.architecture,
                  description.multiprocessors, device.is_gpu() ? "compute units" : "processors")};
}

std::string_view torch_kind() {
  if (at::Context::hasROCM()) return "ROCm";
  return c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA) ? "CUDA" : "CPU";
}

/// A small matrix multiplication on the device: a driver that does not fit the library fails here,
/// not on the first step.
SetupLine check_libtorch(const SelectedDevice& selected) {
  const auto* device = std::get_if<Device>(&selected);
  const auto where = device != nullptr ? device->torch() : c10::Device(c10::DeviceType::CPU);
  const std::string version = fmt::format("{} for {}", TORCH_VERSION, torch_kind());
  constexpr int64_t size = 64;
  try {
    const at::Tensor ones = at::ones({size, size}, at::TensorOptions().device(where));
    const double sum = at::mm(ones, ones).sum().item<double>();
    if (sum == size * size * size) {
      return {SetupStatus::ok, "libtorch", fmt::format("{}; computes on {}", version, where.str())};
    }
    return {SetupStatus::failed, "libtorch",
            fmt::format("{}; a matrix multiplication on {} gives {} where {} is right", version,
                        where.str(), sum, size * size * size)};
  } catch (const std::exception& error) {
    return {SetupStatus::failed, "libtorch",
            fmt::format("{}; cannot compute on {}: {}", version, where.str(), error.what())};
  }
}

}  // namespace

std::string to_text(const SetupLine& line) {
  const std::string_view status = line.status == SetupStatus::ok        ? "ok"
                                  : line.status == SetupStatus::warning ? "warning"
                                                                        : "failed";
  return fmt::format("{:<7}  {}: {}", status, line.what, line.detail);
}

SetupLine check_memory(const instruments::DeviceDescription& device, int64_t free_bytes,
                       const Workload& workload, int64_t needed) {
  // What libraries use beside the tensors is not predicted.
  constexpr double tight = 0.9;
  const std::string found =
      fmt::format("{:.2f} GiB free of {:.2f} GiB; batch {} x seq {} needs about {:.2f} GiB",
                  gibibytes(free_bytes), gibibytes(device.memory_bytes), workload.batch,
                  workload.seq, gibibytes(needed));
  if (needed > free_bytes) {
    return {SetupStatus::failed, "memory",
            found + "; lower --batch-size or --seq-len, or choose a smaller --size"};
  }
  if (static_cast<double>(needed) > tight * static_cast<double>(free_bytes)) {
    return {SetupStatus::warning, "memory", found + ", which may be too tight"};
  }
  return {SetupStatus::ok, "memory", found};
}

SetupLine check_gpu_runtime(const SelectedDevice& selected, std::string_view runtime, int devices) {
  const auto* device = std::get_if<Device>(&selected);
  const SetupStatus not_needed = device != nullptr ? SetupStatus::ok : SetupStatus::warning;
  if (runtime.empty()) {
    return {not_needed, "GPU runtime", "none in this build, which runs on the CPU only"};
  }
  const std::string what = fmt::format("{} runtime", runtime);
  const std::string sees = fmt::format("sees {} device{}", devices, devices == 1 ? "" : "s");
  if (device != nullptr && device->is_gpu()) {
    return {SetupStatus::ok, what,
            fmt::format("{}, driver {}, {}", device->description().runtime_version,
                        device->description().driver_version, sees)};
  }
  if (devices == 0) return {SetupStatus::warning, what, sees + "; only the CPU can be used"};
  if (torch_kind() == "CPU") {
    return {SetupStatus::warning, what,
            sees + ", but this libtorch was built for the CPU; install one for the GPU"};
  }
  return {not_needed, what, sees};
}

SetupLine check_threads(bool has_openmp, int threads, int processors) {
  const std::string found =
      fmt::format("{} OpenMP thread{} for {} usable processor{}", threads, threads == 1 ? "" : "s",
                  processors, processors == 1 ? "" : "s");
  if (!has_openmp) {
    return {SetupStatus::warning, "threads",
            "this libtorch was built without OpenMP: operators on the CPU run on one thread"};
  }
  if (threads > processors) {
    return {SetupStatus::warning, "threads",
            found + ": they wait for one another; lower --threads or OMP_NUM_THREADS"};
  }
  // libtorch takes one a core, and a core may count as two processors.
  if (2 * threads < processors) {
    return {SetupStatus::warning, "threads",
            found + ": the others stay idle; raise --threads or OMP_NUM_THREADS"};
  }
  return {SetupStatus::ok, "threads", found};
}

SetupLine check_folder(const fs::path& folder) {
  if (folder.empty()) return {SetupStatus::ok, "output", "no files will be written"};
  try {
    // it is made only when there is something to write
    fs::path there = fs::absolute(folder).lexically_normal();
    while (!fs::exists(there)) there = there.parent_path();
    try_to_write_in(there);
    return {SetupStatus::ok, "output", folder.string() + ": can be written to"};
  } catch (const std::exception& error) {
    return {
        SetupStatus::failed, "output",
        fmt::format("{}; name another folder with --output-dir or --profile-dir", error.what())};
  }
}

std::vector<SetupLine> validate_setup(const SelectedDevice& device, const Workload& workload,
                                      const fs::path& output_folder) {
  namespace runtime = instruments::gpu_runtime;
  const auto* selected = std::get_if<Device>(&device);
  return {check_device(device),
          check_libtorch(device),
          selected == nullptr
              ? SetupLine{SetupStatus::warning, "memory", "not known without a device"}
              : check_memory(selected->description(), selected->free_memory_bytes(), workload,
                             predict_step_memory(workload, selected->torch().type()).peak()),
          check_gpu_runtime(device, runtime::name(), runtime::device_count()),
          check_threads(at::hasOpenMP(), at::get_num_threads(),
                        static_cast<int>(instruments::host_machine::usable_processors().size())),
          check_folder(output_folder)};
}

bool usable(const std::vector<SetupLine>& lines) {
  return std::ranges::none_of(
      lines, [](const SetupLine& line) { return line.status == SetupStatus::failed; });
}

}  // namespace tinyllama::training

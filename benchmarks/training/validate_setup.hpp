// What --validate-setup looks at before a run is worth starting.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "model/cost.hpp"

namespace tinyllama::training {

enum class SetupStatus { ok, warning, failed };

struct SetupLine {
  SetupStatus status;
  std::string what;    ///< "device", "libtorch", "memory", "HIP runtime", "threads", "output"
  std::string detail;  ///< what was found, and where it is no good, what to do
};
/// "ok       device: AMD EPYC ...", without a newline.
std::string to_text(const SetupLine& line);

/// The device, or why it could not be selected.
using SelectedDevice = std::variant<instruments::Device, std::string>;

/// One line for each thing, in the order of SetupLine::what. `workload` is a micro-batch of the
/// run; an empty output folder means that the run writes no files. Leaves nothing behind in the
/// output folder and throws nothing for what it finds.
std::vector<SetupLine> validate_setup(const SelectedDevice& device, const Workload& workload,
                                      const std::filesystem::path& output_folder);
/// No line failed.
bool usable(const std::vector<SetupLine>& lines);

/// The single checks that depend on nothing but their arguments.
SetupLine check_memory(const instruments::DeviceDescription& device, int64_t free_bytes,
                       const Workload& workload, int64_t needed);
/// `runtime` is the GPU runtime in this build ("HIP", "CUDA" or ""), `devices` what it sees.
SetupLine check_gpu_runtime(const SelectedDevice& device, std::string_view runtime, int devices);
SetupLine check_threads(bool has_openmp, int threads, int processors);
SetupLine check_folder(const std::filesystem::path& folder);

}  // namespace tinyllama::training

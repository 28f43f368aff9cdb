#include "benchmarks/instruments/context.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/hash.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "benchmarks/instruments/hardware_counters.hpp"
#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/library_choices.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "core/version.hpp"

namespace tinyllama::instruments {
namespace {

using host_machine::first_line;
using Settings = std::map<std::string, std::string>;

void add_reading(Settings& settings, const std::string& key, const std::filesystem::path& file) {
  if (auto value = first_line(file)) settings[key] = *value;
}

void add_clock(Settings& settings) {
  const std::filesystem::path processors = "/sys/devices/system/cpu";
  add_reading(settings, "cpu_governor", processors / "cpu0/cpufreq/scaling_governor");
  add_reading(settings, "cpu_frequency_driver", processors / "cpu0/cpufreq/scaling_driver");
  add_reading(settings, "cpu_boost", processors / "cpufreq/boost");
  // Intel's driver says the opposite: whether turbo is off.
  if (const auto off = first_line(processors / "intel_pstate/no_turbo")) {
    settings["cpu_boost"] = std::string(1, *off == "0" ? '1' : '0');
  }
}

/// The chosen word of "always [madvise] never".
void add_huge_pages(Settings& settings) {
  const auto line = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  if (!line) return;
  const auto open = line->find('[');
  const auto close = line->find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return;
  settings["transparent_huge_pages"] = line->substr(open + 1, close - open - 1);
}

/// Every variable that steers threads, math libraries, GPUs, their communication or libtorch.
void add_environment(Settings& settings) {
  constexpr std::array prefixes = std::to_array<std::string_view>({
      "OMP_",       "KMP_",        "GOMP_", "MKL_",  "ONEDNN_", "DNNL_",    "HIP_",
      "HIPBLASLT_", "ROCBLAS_",    "ROCR_", "HSA_",  "AMD_",    "GPU_",     "CUDA_",
      "CUBLAS_",    "NVIDIA_TF32", "NCCL_", "RCCL_", "TORCH_",  "PYTORCH_",
  });
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    for (const std::string_view prefix : prefixes) {
      if (!text.starts_with(prefix)) continue;
      settings["env." + std::string(text.substr(0, equals))] =
          without_folders(text.substr(equals + 1));
    }
  }
}

std::string_view name_of(at::Float32MatmulPrecision precision) {
  constexpr std::string_view kNames[] = {"highest", "high", "medium"};
  return kNames[static_cast<size_t>(precision)];
}

}  // namespace

std::map<std::string, std::string> gpu_settings(Backend backend, const std::string& bus_id,
                                                const SystemSources& sources) {
  Settings settings;
  const bool is_amd = backend == Backend::hip;
  add_reading(settings, "gpu.driver",
              sources.sys / "module" / (is_amd ? "amdgpu" : "nvidia") / "version");
  const std::filesystem::path card = card_folder(sources, bus_id);
  add_reading(settings, "gpu.compute_partition", card / "current_compute_partition");
  add_reading(settings, "gpu.memory_partition", card / "current_memory_partition");
  for (const auto& [name, value] : gpu_reader(backend, sources, bus_id).facts)
    settings["gpu." + name] = value;
  // In the libraries that libtorch has loaded, as RCCL's too.
  if (void* const found = ::dlsym(RTLD_DEFAULT, "ncclGetVersion")) {
    int version = 0;
    if (reinterpret_cast<int (*)(int*)>(found)(&version) == 0)
      settings["gpu.nccl"] =
          fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
  }
  return settings;
}

std::string without_folders(std::string_view text) {
  namespace fs = std::filesystem;
  constexpr std::string_view separators = " \t\n=:;,'\"()`";
  const fs::path here = fs::current_path();
  const auto published = [&](std::string_view word) {
    const fs::path path = fs::path(word).lexically_normal();
    const fs::path from_here = path.lexically_relative(here);
    // everything is below the root
    if (here.has_relative_path() && !from_here.empty() && *from_here.begin() != "..")
      return from_here.string();
    return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
  };
  const auto begins_path = [&](size_t at) {
    const bool is_first = at == 0 || separators.find(text[at - 1]) != std::string_view::npos;
    // two slashes follow the scheme of an address
    constexpr std::string_view no_name = "/ \t\n";
    return text[at] == '/' && is_first && at + 1 < text.size() &&
           no_name.find(text[at + 1]) == std::string_view::npos;
  };
  std::string found;
  for (size_t at = 0; at < text.size();) {
    if (!begins_path(at)) {
      found += text[at++];
      continue;
    }
    // folders that are there may have separators in their names
    size_t end = at;
    std::error_code unknown;
    for (size_t slash = text.find('/', at + 1);
         slash != std::string_view::npos && fs::is_directory(text.substr(at, slash - at), unknown);
         slash = text.find('/', slash + 1))
      end = slash;
    end = std::min(text.find_first_of(separators, end), text.size());
    found += published(text.substr(at, end - at));
    at = end;
  }
  return found;
}

std::string host_word() {
  std::array<char, 256> name = {};
  ::gethostname(name.data(), name.size() - 1);
  return "host_" + c10::sha1(name.data()).str().substr(0, 8);
}

std::map<std::string, std::string> system_settings(const Device& device) {
  Settings settings;
  add_clock(settings);
  add_huge_pages(settings);
  add_environment(settings);
  settings["cpu_affinity"] = host_machine::allowed_processors();
  if (const auto quota = host_machine::processor_quota())
    settings["cpu_quota"] = fmt::format("{:g}", *quota);
  settings["torch_threads"] = std::to_string(at::get_num_threads());
  settings["deterministic_algorithms"] =
      at::globalContext().deterministicAlgorithms() ? "true" : "false";
  settings["float32_matmul_precision"] = name_of(at::globalContext().float32MatmulPrecision());
  settings.merge(library_settings(device));
  if (!device.is_gpu()) {
    // Where there is none, the rows lack it, and here is why.
    const std::string no_counts = why_no_counts();
    settings["hardware_counters"] = no_counts.empty() ? "perf_event_open" : "none: " + no_counts;
    const std::string no_energy = why_no_energy({});
    settings["energy"] = no_energy.empty() ? "RAPL" : "none: " + no_energy;
  }
  if (device.is_gpu()) {
    settings["deterministic_cudnn"] = at::globalContext().deterministicCuDNN() ? "true" : "false";
    settings["gpu.uuid"] = device.description().uuid;
    settings.merge(gpu_settings(device.backend(), gpu_runtime::pci_bus_id(device.torch().index())));
    const std::string module = power_of_module(device.description());
    if (!module.empty()) settings["gpu.power_of"] = module;
  }
  return settings;
}

nlohmann::ordered_json describe_device(const Device& device) {
  const DeviceDescription& d = device.description();
  return {{"name", d.name},
          {"architecture", d.architecture},
          {"backend", to_string(device.backend())},
          {"memory_bytes", d.memory_bytes},
          {"multiprocessors", d.multiprocessors},
          {"last_level_cache_bytes", d.last_level_cache_bytes},
          {"runtime_version", d.runtime_version},
          {"driver_version", d.driver_version}};
}

nlohmann::ordered_json machine_context(const Device& device, std::span<const Plugin> plugins) {
  const SourceVersion version = source_version();
  nlohmann::ordered_json context = {
      {"git_commit", version.commit},       {"git_dirty", version.dirty},
      {"device", describe_device(device)},  {"torch_version", TORCH_VERSION},
      {"threads", at::get_num_threads()},   {"memory_source", memory_source(device)},
      {"settings", system_settings(device)}};
  for (const Plugin& plugin : plugins)
    context["plugins"].push_back(
        {{"file", plugin.file_name}, {"sha256", plugin.sha256}, {"operators", plugin.operators}});
  return context;
}

}  // namespace tinyllama::instruments

#include "benchmarks/instruments/device.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "core/text.hpp"

namespace tinyllama::instruments {
namespace {

Backend gpu_backend() {
  return at::Context::hasROCM() ? Backend::hip : Backend::cuda;
}

/// Why there is no GPU of this kind, or which there are.
std::string what_is_present() {
  const int count = gpu_count();
  std::string text = count == 0 ? "libtorch offers the cpu only"
                                : fmt::format("libtorch offers the cpu and {} {} device{}", count,
                                              to_string(gpu_backend()), count == 1 ? "" : "s");
  if (count == 0 && gpu_runtime::name() == "HIP") {
    text += fmt::format("; libtorch was built without ROCm; the HIP runtime sees {} devices",
                        gpu_runtime::device_count());
  }
  return text;
}

[[noreturn]] void reject(std::string_view text, std::string_view rule) {
  throw std::invalid_argument(
      fmt::format("device \"{}\": {} (allowed: auto, cpu, cuda, cuda:N, hip, hip:N; here {})", text,
                  rule, what_is_present()));
}

struct Request {
  std::string_view kind;
  int index = 0;
  bool has_index = false;
};

Request parse(std::string_view text) {
  const auto colon = text.find(':');
  Request request{text.substr(0, colon)};
  if (colon == std::string_view::npos) return request;
  const std::string_view number = text.substr(colon + 1);
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), request.index);
  const bool whole = error == std::errc{} && end == number.data() + number.size();
  // Device indices of libtorch have eight bits.
  if (number.empty() || !whole || request.index < 0 || request.index > 127) {
    reject(text, "what follows the colon is not a device number");
  }
  request.has_index = true;
  return request;
}

DeviceDescription describe_cpu() {
  utsname machine{};
  uname(&machine);
  const std::string type = machine.machine;
  DeviceDescription description;
  description.name = host_machine::processor_name();
  description.architecture =
      fmt::format("{} {}", type == "x86_64" ? "x86-64" : type, at::get_cpu_capability());
  description.memory_bytes = host_machine::memory().total_bytes;
  description.multiprocessors = static_cast<int>(host_machine::usable_processors().size());
  // Each thread is bound to one of them, in this order (pin_openmp_threads): few threads do not
  // reach the caches of all.
  std::vector<int> processors = host_machine::usable_processors();
  const auto threads = static_cast<size_t>(at::get_num_threads());
  if (processors.size() > threads) processors.resize(threads);
  description.last_level_cache_bytes = host_machine::last_level_cache_bytes(processors);
  return description;
}

}  // namespace

// A ROCm build shows its devices as "cuda" as well.
int gpu_count() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return 0;
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
}

int64_t last_level_cache_bytes(std::string_view architecture, int64_t second_level_bytes) {
  if (!architecture.starts_with("gfx")) return second_level_bytes;
  struct Cache {
    std::string_view architecture;
    int64_t infinity_mebibytes;  // 0: none, the second level is the last
  };
  // "AMD GPU specifications", rocm.docs.amd.com/en/latest/reference/gpu-specs.html, 2026.
  constexpr Cache caches[] = {{"gfx900", 0},   {"gfx906", 0},   {"gfx908", 0},   {"gfx90a", 0},
                              {"gfx942", 256}, {"gfx950", 256}, {"gfx1012", 0},  {"gfx1030", 128},
                              {"gfx1031", 96}, {"gfx1032", 32}, {"gfx1100", 96}, {"gfx1101", 64},
                              {"gfx1102", 32}, {"gfx1103", 0},  {"gfx1150", 0},  {"gfx1151", 32},
                              {"gfx1152", 0},  {"gfx1200", 32}, {"gfx1201", 64}};
  const auto* const found = std::ranges::find(caches, architecture, &Cache::architecture);
  if (found == std::end(caches)) return 0;
  const int64_t mebibytes = found->infinity_mebibytes;
  return mebibytes > 0 ? mebibytes << 20 : second_level_bytes;
}

std::string device_identity(const Device& device) {
  if (!device.is_gpu()) return {};
  // The same in all containers of a host, unlike its name.
  const auto host = host_machine::first_line("/proc/sys/kernel/random/boot_id");
  return fmt::format("{} at {} of host {}", device.description().uuid,
                     gpu_runtime::pci_bus_id(device.torch().index()),
                     host.value_or("unknown").substr(0, 8));
}

std::string_view to_string(Backend backend) {
  constexpr std::string_view kNames[] = {"cpu", "cuda", "hip"};
  return kNames[static_cast<size_t>(backend)];
}

Device::Device(c10::Device torch_device, Backend backend, DeviceDescription description)
    : torch_device_(torch_device), backend_(backend), description_(std::move(description)) {}

Device Device::select(std::string_view text, std::optional<int> local_rank) {
  Request request = parse(text);
  const bool known = request.kind == "auto" || request.kind == "cpu" || request.kind == "cuda" ||
                     request.kind == "hip";
  if (!known) reject(text, "unknown kind of device");
  if (request.has_index && (request.kind == "auto" || request.kind == "cpu")) {
    reject(text, "only a GPU has a number");
  }
  if (request.kind == "cpu" || (request.kind == "auto" && gpu_count() == 0)) {
    return Device(c10::Device(c10::DeviceType::CPU), Backend::cpu, describe_cpu());
  }
  const int count = gpu_count();
  if (count == 0) reject(text, "no such device");
  if (request.kind != "auto" && request.kind != to_string(gpu_backend()))
    reject(text, "libtorch was built for the other kind of GPU");
  // Launchers that bind ranks show each of them its own device only, which is the first then.
  if (local_rank && !request.has_index && count > 1) request.index = *local_rank;
  if (request.index >= count) {
    reject(fmt::format("{}:{}", to_string(gpu_backend()), request.index),
           "the device number is too large");
  }
  if (gpu_runtime::name().empty()) {
    reject(text,
           "this build cannot read the GPU's memory; configure with TINY_LLAMA_WITH_HIP=ON or "
           "choose cpu");
  }
  return Device(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(request.index)),
                gpu_backend(), gpu_runtime::describe(request.index));
}

int64_t Device::free_memory_bytes() const {
  const int64_t cached = cached_memory_bytes(torch_device_);
  if (!is_gpu()) return host_machine::memory().available_bytes + cached;
  const c10::DeviceGuard current(torch_device_);
  return gpu_runtime::free_memory_bytes() + cached;
}

std::string Device::fault() const {
  try {
    synchronize();
    return {};
  } catch (const std::exception& error) {
    return message_of(error);
  }
}

void Device::synchronize() const {
  if (is_gpu()) {
    c10::impl::VirtualGuardImpl(torch_device_.type()).synchronizeDevice(torch_device_.index());
  }
}

}  // namespace tinyllama::instruments

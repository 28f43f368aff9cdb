// The machine a benchmark runs on: which device, what it is called, how much memory it has left.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllama::instruments {

enum class Backend { cpu, cuda, hip };
std::string_view to_string(Backend backend);

/// What a runtime says about one device. Text that a runtime cannot tell is empty, sizes are 0.
struct DeviceDescription {
  std::string name;             ///< "AMD Instinct MI250X", "AMD EPYC 7763 64-Core Processor"
  std::string architecture;     ///< "gfx90a", "sm_90", "x86-64 AVX2"
  int64_t memory_bytes = 0;     ///< all of it; on a CPU the RAM or, where lower, the cgroup's limit
  std::string runtime_version;  ///< HIP or CUDA runtime; empty on a CPU
  std::string driver_version;
  std::string uuid;         ///< of a GPU, or of the part of one that MIG makes; empty on a CPU
  int multiprocessors = 0;  ///< compute units; on a CPU the logical processors we may use
  int64_t last_level_cache_bytes = 0;  ///< 0: unknown
};

/// A device that libtorch can compute on.
class Device {
 public:
  /// "auto" (the first GPU, else the CPU), "cpu", "cuda", "hip", each GPU name with an optional
  /// ":N". Of one of several ranks a GPU name without is the device of its number on its host.
  /// Throws std::invalid_argument that names the text, the allowed forms and what is present.
  static Device select(std::string_view text, std::optional<int> local_rank = std::nullopt);

  c10::Device torch() const { return torch_device_; }
  Backend backend() const { return backend_; }
  bool is_gpu() const { return backend_ != Backend::cpu; }
  const DeviceDescription& description() const { return description_; }

  /// Bytes that a new tensor could get now, those that the device's caching allocator holds unused
  /// included. CPU: the lower of MemAvailable and what the cgroups leave.
  int64_t free_memory_bytes() const;
  /// Waits for all work queued on the device; nothing on a CPU.
  void synchronize() const;
  /// What a GPU answers to everything after an error that sticks, such as an access to memory that
  /// is not its own; empty where it computes.
  std::string fault() const;

 private:
  Device(c10::Device torch_device, Backend backend, DeviceDescription description);
  c10::Device torch_device_;
  Backend backend_;
  DeviceDescription description_;
};

/// GPUs that this process sees and libtorch can compute on.
int gpu_count();

/// Of a GPU; 0: unknown. `second_level_bytes`: what a runtime tells. On AMD's the last level may be
/// the Infinity Cache behind it, of which no runtime tells; where cards of an architecture differ,
/// it is the largest.
int64_t last_level_cache_bytes(std::string_view architecture, int64_t second_level_bytes);

/// Tells devices of all hosts apart: host, address on the bus and UUID. Either alone may be several
/// devices': partitions may share a UUID, Radeon cards may have none but "GPU-XX", and MIG's
/// instances share an address. Empty on a CPU.
std::string device_identity(const Device& device);

/// The few things about a GPU that libtorch does not tell and its runtime does.
namespace gpu_runtime {

/// "HIP", "CUDA", or nothing in a build without either.
std::string_view name();
/// Devices that the runtime sees; 0 when there is no driver or no runtime.
int device_count();
/// Throws std::runtime_error with the runtime's own error text when it does not answer,
/// std::logic_error without a runtime.
DeviceDescription describe(int index);
/// "0000:c1:00.0": where the card sits, by which other libraries know it. Errors as for describe.
std::string pci_bus_id(int index);

/// Free memory of the current device, as hipMemGetInfo and cudaMemGetInfo say. Errors as for
/// describe.
int64_t free_memory_bytes();

}  // namespace gpu_runtime
}  // namespace tinyllama::instruments

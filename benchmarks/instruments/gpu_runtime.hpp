// The few things about a GPU that libtorch does not tell and its runtime (HIP or CUDA) does.
// Exactly one of device_hip.cpp, device_cuda.cpp and gpu_runtime_none.cpp is compiled and defines
// these functions. Internal to the instruments, and to what validates a set-up.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments::gpu_runtime {

/// "HIP", "CUDA", or nothing in a build without either.
std::string_view name();
/// Devices that the runtime sees; 0 when there is no driver or no runtime.
int device_count();
/// Throws std::runtime_error with the runtime's own error text when it does not answer,
/// std::logic_error without a runtime.
DeviceDescription describe(int index);
/// "0000:c1:00.0": where the card sits, by which other libraries know it. Errors as for describe.
std::string pci_bus_id(int index);

struct Memory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};
/// Of the whole device, all processes included. Errors as for describe.
Memory memory(int index);

}  // namespace tinyllama::instruments::gpu_runtime

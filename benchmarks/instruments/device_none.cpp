// A build that knows no GPU runtime: no devices.
#include <stdexcept>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::instruments::gpu_runtime {

std::string_view name() {
  return {};
}

int device_count() {
  return 0;
}

DeviceDescription describe(int) {
  throw std::logic_error("this build has no GPU runtime to describe a device with");
}

std::string pci_bus_id(int) {
  throw std::logic_error("this build has no GPU runtime to ask for a bus address");
}

Memory memory(int) {
  throw std::logic_error("this build has no GPU runtime to ask for memory");
}

}  // namespace tinyllama::instruments::gpu_runtime

#include "benchmarks/instruments/system_readings.hpp"
#include "benchmarks/instruments/host_machine.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "benchmarks/instruments/gpu_runtime.hpp"

namespace tinyllama::instruments {
namespace {

class NothingToRead : public SystemReader {
 public:
  explicit NothingToRead(std::string reason) : reason_(std::move(reason)) {}
  SystemReading read() override { return {}; }
  std::string source() const override { return fmt::format("none ({})", reason_); }

 private:
  std::string reason_;
};

}  // namespace

std::unique_ptr<SystemReader> system_reader(const Device& device, const SystemSources& sources) {
  if (!device.is_gpu()) {
    return cpu_reader(sources, host_machine::usable_processors());
  }
  try {
    const int index = device.torch().index();
    const GpuIdentity gpu{gpu_runtime::pci_bus_id(index), index};
    return device.backend() == Backend::hip ? rocm_smi_reader(sources, gpu)
                                            : nvml_reader(sources, gpu);
  } catch (const std::runtime_error& error) {
    return std::make_unique<NothingToRead>(error.what());
  }
}

}  // namespace tinyllama::instruments

// Readings of NVIDIA GPUs. The few declarations are written out, so that no header of NVIDIA's is
// needed to build: they are part of NVML's stable interface (NVML API Reference Guide).
#include <fmt/format.h>

#include <stdexcept>
#include <string>

#include "benchmarks/instruments/shared_library.hpp"
#include "benchmarks/instruments/system_readings.hpp"

namespace tinyllama::instruments {
namespace {

using nvmlDevice = void*;
using nvmlReturn = int;
constexpr nvmlReturn kSuccess = 0;
constexpr int kClockSm = 1;         // NVML_CLOCK_SM
constexpr int kTemperatureGpu = 0;  // NVML_TEMPERATURE_GPU

struct nvmlUtilization {
  unsigned int gpu;
  unsigned int memory;
};

class NvmlReader : public SystemReader {
 public:
  NvmlReader(SharedLibrary library, const GpuIdentity& gpu)
      : library_(std::move(library)), session_(library_) {
    utilization_ = library_.find<decltype(utilization_)>("nvmlDeviceGetUtilizationRates");
    clock_ = library_.find<decltype(clock_)>("nvmlDeviceGetClockInfo");
    temperature_ = library_.find<decltype(temperature_)>("nvmlDeviceGetTemperature");
    power_ = library_.find<decltype(power_)>("nvmlDeviceGetPowerUsage");
    find_device(gpu);
  }

  SystemReading read() override {
    SystemReading reading;
    unsigned int value = 0;
    if (nvmlUtilization use{}; utilization_ && utilization_(device_, &use) == kSuccess) {
      reading.utilization_percent = use.gpu;
    }
    if (clock_ && clock_(device_, kClockSm, &value) == kSuccess) reading.clock_MHz = value;
    if (temperature_ && temperature_(device_, kTemperatureGpu, &value) == kSuccess) {
      reading.temperature_celsius = value;
    }
    constexpr double watts_per_milliwatt = 1e-3;
    if (power_ && power_(device_, &value) == kSuccess) {
      reading.power_watts = value * watts_per_milliwatt;
    }
    return reading;
  }
  std::string source() const override { return fmt::format("NVML ({})", library_.name()); }

 private:
  /// Initialises the library for as long as it lives.
  class Session {
   public:
    explicit Session(const SharedLibrary& library)
        : shutdown_(library.require<decltype(shutdown_)>("nvmlShutdown")) {
      const auto status = library.require<nvmlReturn (*)()>("nvmlInit_v2")();
      if (status != kSuccess) {
        throw std::runtime_error(
            fmt::format("{}: nvmlInit_v2 returned {}", library.name(), status));
      }
    }
    ~Session() { shutdown_(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

   private:
    nvmlReturn (*shutdown_)();
  };

  void find_device(const GpuIdentity& gpu) {
    if (!gpu.pci_bus_id.empty()) {
      const auto find = library_.require<nvmlReturn (*)(const char*, nvmlDevice*)>(
          "nvmlDeviceGetHandleByPciBusId_v2");
      check_found(find(gpu.pci_bus_id.c_str(), &device_), gpu.pci_bus_id);
    } else {
      const auto find = library_.require<nvmlReturn (*)(unsigned int, nvmlDevice*)>(
          "nvmlDeviceGetHandleByIndex_v2");
      check_found(find(static_cast<unsigned int>(gpu.index), &device_),
                  fmt::format("number {}", gpu.index));
    }
  }
  void check_found(nvmlReturn status, const std::string& which) const {
    if (status == kSuccess) return;
    throw std::runtime_error(
        fmt::format("{}: knows no GPU {} (error {})", library_.name(), which, status));
  }

  SharedLibrary library_;
  Session session_;
  nvmlDevice device_ = nullptr;
  nvmlReturn (*utilization_)(nvmlDevice, nvmlUtilization*) = nullptr;
  nvmlReturn (*clock_)(nvmlDevice, int, unsigned int*) = nullptr;
  nvmlReturn (*temperature_)(nvmlDevice, int, unsigned int*) = nullptr;
  nvmlReturn (*power_)(nvmlDevice, unsigned int*) = nullptr;
};

}  // namespace

std::unique_ptr<SystemReader> nvml_reader(const SystemSources& sources, const GpuIdentity& gpu) {
  return std::make_unique<NvmlReader>(SharedLibrary::first_of(sources.nvml), gpu);
}

}  // namespace tinyllama::instruments

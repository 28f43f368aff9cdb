// Readings of AMD GPUs. The few declarations are written out, so that no header of ROCm SMI's is
// needed to build: they are the same from ROCm 5 to 7 (rocm_smi/rocm_smi.h).
#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "benchmarks/instruments/shared_library.hpp"
#include "benchmarks/instruments/system_readings.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;

using rsmiStatus = int;
constexpr rsmiStatus kSuccess = 0;
constexpr int kCurrent = 0;              // RSMI_TEMP_CURRENT
constexpr uint32_t kEdgeSensor = 0;      // RSMI_TEMP_TYPE_EDGE
constexpr uint32_t kJunctionSensor = 1;  // RSMI_TEMP_TYPE_JUNCTION
constexpr double kWattsPerMicrowatt = 1e-6;

/// "0000:c1:00.0" of ROCm SMI's packed address: domain in the high 32 bits, bus in bits 8 to 15,
/// device in 3 to 7, function in 0 to 2; the bits between hold a partition.
std::string bus_id_text(uint64_t packed) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", packed >> 32, packed >> 8 & 0xff,
                     packed >> 3 & 0x1f, packed & 0x7);
}

std::string lower_case(std::string text) {
  for (char& letter : text) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return text;
}

/// The shader clock that amdgpu reports of a card, in Hz; an empty path where it does not.
fs::path clock_file(const fs::path& sys, const std::string& bus_id) {
  std::error_code none;
  for (const auto& monitor :
       fs::directory_iterator(sys / "bus/pci/devices" / bus_id / "hwmon", none)) {
    if (fs::exists(monitor.path() / "freq1_input", none)) return monitor.path() / "freq1_input";
  }
  return {};
}

class RocmSmiReader : public SystemReader {
 public:
  RocmSmiReader(SharedLibrary library, const fs::path& sys, const GpuIdentity& gpu)
      : library_(std::move(library)), session_(library_) {
    busy_ = library_.find<decltype(busy_)>("rsmi_dev_busy_percent_get");
    temperature_ = library_.find<decltype(temperature_)>("rsmi_dev_temp_metric_get");
    average_power_ = library_.find<decltype(average_power_)>("rsmi_dev_power_ave_get");
    socket_power_ = library_.find<decltype(socket_power_)>("rsmi_dev_current_socket_power_get");
    bus_id_ = library_.find<decltype(bus_id_)>("rsmi_dev_pci_id_get");
    find_device(gpu);
    if (const std::string bus_id = bus_id_of(device_); !bus_id.empty()) {
      clock_file_ = clock_file(sys, bus_id);
    }
  }

  SystemReading read() override {
    SystemReading reading;
    if (uint32_t percent = 0; busy_ && busy_(device_, &percent) == kSuccess) {
      reading.utilization_percent = percent;
    }
    reading.clock_MHz = clock();
    reading.temperature_celsius = temperature(kJunctionSensor);
    if (!reading.temperature_celsius) reading.temperature_celsius = temperature(kEdgeSensor);
    reading.power_watts = power();
    return reading;
  }
  std::string source() const override {
    return fmt::format("ROCm SMI ({}){}", library_.name(),
                       clock_file_.empty() ? "" : " and amdgpu's files");
  }

 private:
  /// Initialises the library for as long as it lives.
  class Session {
   public:
    explicit Session(const SharedLibrary& library)
        : shutdown_(library.require<decltype(shutdown_)>("rsmi_shut_down")) {
      const auto status = library.require<rsmiStatus (*)(uint64_t)>("rsmi_init")(0);
      if (status != kSuccess) {
        throw std::runtime_error(fmt::format("{}: rsmi_init returned {}", library.name(), status));
      }
    }
    ~Session() { shutdown_(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

   private:
    rsmiStatus (*shutdown_)();
  };

  void find_device(const GpuIdentity& gpu) {
    uint32_t count = 0;
    const auto status =
        library_.require<rsmiStatus (*)(uint32_t*)>("rsmi_num_monitor_devices")(&count);
    if (status != kSuccess) count = 0;
    if (!gpu.pci_bus_id.empty()) {
      // ROCm SMI counts all cards of the machine, HIP those that it was told to see.
      const std::string wanted = lower_case(gpu.pci_bus_id);
      for (device_ = 0; device_ < count; ++device_) {
        if (bus_id_of(device_) == wanted) return;
      }
    } else if (gpu.index >= 0 && static_cast<uint32_t>(gpu.index) < count) {
      device_ = static_cast<uint32_t>(gpu.index);
      return;
    }
    throw std::runtime_error(fmt::format(
        "{}: knows no GPU {} among its {}", library_.name(),
        gpu.pci_bus_id.empty() ? fmt::format("number {}", gpu.index) : gpu.pci_bus_id, count));
  }
  std::string bus_id_of(uint32_t device) const {
    uint64_t packed = 0;
    return bus_id_ && bus_id_(device, &packed) == kSuccess ? bus_id_text(packed) : std::string();
  }

  std::optional<double> clock() const {
    if (clock_file_.empty()) return std::nullopt;
    constexpr double hertz_per_megahertz = 1e6;
    std::ifstream file(clock_file_);
    double hertz = 0;
    // A card that sleeps says 0, which is no clock of its work.
    if (!(file >> hertz) || hertz <= 0) return std::nullopt;
    return hertz / hertz_per_megahertz;
  }
  std::optional<double> temperature(uint32_t sensor) const {
    constexpr double degrees_per_millidegree = 1e-3;
    int64_t value = 0;
    if (!temperature_ || temperature_(device_, sensor, kCurrent, &value) != kSuccess) {
      return std::nullopt;
    }
    return static_cast<double>(value) * degrees_per_millidegree;
  }
  /// The second die of a two-die card reports 0: its power is counted with the first one's.
  std::optional<double> power() const {
    uint64_t microwatts = 0;
    if (average_power_ && average_power_(device_, 0, &microwatts) == kSuccess && microwatts > 0) {
      return static_cast<double>(microwatts) * kWattsPerMicrowatt;
    }
    if (socket_power_ && socket_power_(device_, &microwatts) == kSuccess && microwatts > 0) {
      return static_cast<double>(microwatts) * kWattsPerMicrowatt;
    }
    return std::nullopt;
  }

  SharedLibrary library_;
  Session session_;
  uint32_t device_ = 0;
  fs::path clock_file_;
  rsmiStatus (*busy_)(uint32_t, uint32_t*) = nullptr;
  rsmiStatus (*temperature_)(uint32_t, uint32_t, int, int64_t*) = nullptr;
  rsmiStatus (*average_power_)(uint32_t, uint32_t, uint64_t*) = nullptr;
  rsmiStatus (*socket_power_)(uint32_t, uint64_t*) = nullptr;
  rsmiStatus (*bus_id_)(uint32_t, uint64_t*) = nullptr;
};

}  // namespace

std::unique_ptr<SystemReader> rocm_smi_reader(const SystemSources& sources,
                                              const GpuIdentity& gpu) {
  return std::make_unique<RocmSmiReader>(SharedLibrary::first_of(sources.rocm_smi), sources.sys,
                                         gpu);
}

}  // namespace tinyllama::instruments

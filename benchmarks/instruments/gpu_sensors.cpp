// Readings of GPUs, through their vendors' libraries. The few declarations are written out, so that
// no header of the vendors' is needed to build: NVML's are part of its stable interface (NVML API
// Reference Guide), ROCm SMI's are the same from ROCm 5 to 7 (rocm_smi/rocm_smi.h).
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "benchmarks/instruments/system_sampler.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;

/// A library that is looked for when the program runs, so that the program starts without it.
class SharedLibrary {
 public:
  /// The first of `names` that can be loaded, each a file's path or a name that the dynamic linker
  /// knows; throws std::runtime_error with the first one's reason where none can.
  explicit SharedLibrary(const std::vector<std::string>& names) {
    std::string reason = "no library is named";
    for (const std::string& name : names) {
      name_ = name;
      // It stays loaded: vendors' libraries leave threads and exit handlers behind.
      handle_.reset(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
      if (handle_) return;
      const char* said = ::dlerror();
      if (&name == &names.front()) reason = said != nullptr ? said : name + ": cannot be loaded";
    }
    throw std::runtime_error(reason);
  }

  const std::string& name() const { return name_; }
  /// The function of that name; null where the library has none. Function is its pointer type.
  template <typename Function>
  Function find(const char* function) const {
    return reinterpret_cast<Function>(::dlsym(handle_.get(), function));
  }
  /// The same, but throws std::runtime_error naming library and function where there is none.
  template <typename Function>
  Function require(const char* function) const {
    const auto found = find<Function>(function);
    if (found == nullptr) throw std::runtime_error(fmt::format("{} has no {}", name_, function));
    return found;
  }

 private:
  struct Close {
    void operator()(void* handle) const { ::dlclose(handle); }
  };
  std::string name_;
  std::unique_ptr<void, Close> handle_;
};

constexpr int kSuccess = 0;  // NVML_SUCCESS, RSMI_STATUS_SUCCESS

/// An initialised library, shut down at the end.
class Session {
 public:
  /// `status`: what the function `init` returned.
  Session(const SharedLibrary& library, const char* init, int status, const char* shutdown)
      : shutdown_(library.require<int (*)()>(shutdown)) {
    if (status != kSuccess)
      throw std::runtime_error(fmt::format("{}: {} returned {}", library.name(), init, status));
  }
  ~Session() { shutdown_(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  int (*shutdown_)();
};

using nvmlDevice = void*;
constexpr int kClockSm = 1;         // NVML_CLOCK_SM
constexpr int kTemperatureGpu = 0;  // NVML_TEMPERATURE_GPU

struct nvmlUtilization {
  unsigned int gpu;
  unsigned int memory;
};

class NvmlReader : public SystemReader {
 public:
  NvmlReader(SharedLibrary library, const GpuIdentity& gpu)
      : library_(std::move(library)),
        session_(library_, "nvmlInit_v2", library_.require<int (*)()>("nvmlInit_v2")(),
                 "nvmlShutdown") {
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
  void find_device(const GpuIdentity& gpu) {
    if (!gpu.pci_bus_id.empty()) {
      const auto find =
          library_.require<int (*)(const char*, nvmlDevice*)>("nvmlDeviceGetHandleByPciBusId_v2");
      check_found(find(gpu.pci_bus_id.c_str(), &device_), gpu.pci_bus_id);
    } else {
      const auto find =
          library_.require<int (*)(unsigned int, nvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2");
      check_found(find(static_cast<unsigned int>(gpu.index), &device_),
                  fmt::format("number {}", gpu.index));
    }
  }
  void check_found(int status, const std::string& which) const {
    if (status == kSuccess) return;
    throw std::runtime_error(
        fmt::format("{}: knows no GPU {} (error {})", library_.name(), which, status));
  }

  SharedLibrary library_;
  Session session_;
  nvmlDevice device_ = nullptr;
  int (*utilization_)(nvmlDevice, nvmlUtilization*) = nullptr;
  int (*clock_)(nvmlDevice, int, unsigned int*) = nullptr;
  int (*temperature_)(nvmlDevice, int, unsigned int*) = nullptr;
  int (*power_)(nvmlDevice, unsigned int*) = nullptr;
};

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
      : library_(std::move(library)),
        session_(library_, "rsmi_init", library_.require<int (*)(uint64_t)>("rsmi_init")(0),
                 "rsmi_shut_down") {
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
  void find_device(const GpuIdentity& gpu) {
    uint32_t count = 0;
    const auto status = library_.require<int (*)(uint32_t*)>("rsmi_num_monitor_devices")(&count);
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
  int (*busy_)(uint32_t, uint32_t*) = nullptr;
  int (*temperature_)(uint32_t, uint32_t, int, int64_t*) = nullptr;
  int (*average_power_)(uint32_t, uint32_t, uint64_t*) = nullptr;
  int (*socket_power_)(uint32_t, uint64_t*) = nullptr;
  int (*bus_id_)(uint32_t, uint64_t*) = nullptr;
};

}  // namespace

std::unique_ptr<SystemReader> nvml_reader(const SystemSources& sources, const GpuIdentity& gpu) {
  return std::make_unique<NvmlReader>(SharedLibrary(sources.nvml), gpu);
}

std::unique_ptr<SystemReader> rocm_smi_reader(const SystemSources& sources,
                                              const GpuIdentity& gpu) {
  return std::make_unique<RocmSmiReader>(SharedLibrary(sources.rocm_smi), sources.sys, gpu);
}

}  // namespace tinyllama::instruments

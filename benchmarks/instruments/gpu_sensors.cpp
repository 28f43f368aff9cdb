// Readings of GPUs, through their vendors' libraries. The few declarations are written out, so that
// no header of the vendors' is needed to build: NVML's are part of its stable interface (NVML API
// Reference Guide), AMD SMI's and ROCm SMI's are those that stayed the same from release to release
// (amd_smi/amdsmi.h of ROCm 6 and 7, rocm_smi/rocm_smi.h of 5 to 7).
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "benchmarks/instruments/host_machine.hpp"
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
  /// The address of a function; becomes a pointer of whatever type it is assigned to, null where
  /// the library has none.
  struct Function {
    void* address;
    template <typename Pointer>
    operator Pointer() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<Pointer>(address);
    }
  };
  Function find(const char* function) const { return {::dlsym(handle_.get(), function)}; }
  Function first_of(const char* function, const char* older) const {
    const Function found = find(function);
    return found.address != nullptr ? found : find(older);
  }
  /// The same, but throws std::runtime_error naming library and function where there is none.
  template <typename Pointer>
  Pointer require(const char* function) const {
    const Function found = find(function);
    if (!found.address) throw std::runtime_error(fmt::format("{} has no {}", name_, function));
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

/// Calls a function of a library, where it has it.
template <typename... Arguments>
bool succeeds(int (*function)(Arguments...), std::type_identity_t<Arguments>... arguments) {
  return function != nullptr && function(arguments...) == kSuccess;
}

std::string name_of(const GpuIdentity& gpu) {
  return gpu.pci_bus_id.empty() ? fmt::format("number {}", gpu.index) : gpu.pci_bus_id;
}

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

// nvmlClocksEventReason...: why a clock is lower than it might be.
constexpr unsigned long long kSoftwarePowerCap = 0x4;
constexpr unsigned long long kHardwareSlowdown = 0x8;
constexpr unsigned long long kSoftwareThermal = 0x20;
constexpr unsigned long long kHardwareThermal = 0x40;
constexpr unsigned long long kPowerBrake = 0x80;

struct nvmlUtilization {
  unsigned int gpu;
  unsigned int memory;
};

class Nvml {
 public:
  Nvml(const std::vector<std::string>& names, const GpuIdentity& gpu) : library_(names) {
    if (gpu.pci_bus_id.empty()) {
      const auto find =
          library_.require<int (*)(unsigned int, nvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2");
      check_found(find(static_cast<unsigned int>(gpu.index), &device_), gpu);
    } else {
      const auto find =
          library_.require<int (*)(const char*, nvmlDevice*)>("nvmlDeviceGetHandleByPciBusId_v2");
      check_found(find(gpu.pci_bus_id.c_str(), &device_), gpu);
    }
  }

  SystemReading read() const {
    SystemReading reading;
    nvmlUtilization use{};
    unsigned int value = 0;
    if (succeeds(utilization_, device_, &use)) reading["utilization_percent"] = use.gpu;
    if (succeeds(clock_, device_, kClockSm, &value)) reading["clock_MHz"] = value;
    if (succeeds(temperature_, device_, kTemperatureGpu, &value))
      reading["temperature_celsius"] = value;
    if (succeeds(power_, device_, &value)) reading["power_watts"] = value / 1e3;
    unsigned long long bits = 0;
    if (succeeds(energy_, device_, &bits))
      reading["energy_joules"] = static_cast<double>(bits) / 1e3;
    if (succeeds(reasons_, device_, &bits)) {
      const auto any = [&](unsigned long long mask) { return (bits & mask) != 0 ? 1.0 : 0.0; };
      reading["limited_by_power"] = any(kSoftwarePowerCap | kPowerBrake);
      reading["limited_by_temperature"] = any(kSoftwareThermal | kHardwareThermal);
      reading["limited_by_hardware"] = any(kHardwareSlowdown);
    }
    return reading;
  }
  std::map<std::string, std::string> facts() const {
    std::map<std::string, std::string> known;
    unsigned int value = 0;
    unsigned int pending = 0;
    if (succeeds(power_limit_, device_, &value))
      known["power_limit_W"] = fmt::format("{:g}", value / 1e3);
    if (succeeds(ecc_, device_, &value, &pending)) known["ecc"] = value != 0 ? "on" : "off";
    return known;
  }
  std::string source() const { return fmt::format("NVML ({})", library_.name()); }

 private:
  void check_found(int status, const GpuIdentity& gpu) const {
    if (status == kSuccess) return;
    throw std::runtime_error(
        fmt::format("{}: knows no GPU {} (error {})", library_.name(), name_of(gpu), status));
  }

  SharedLibrary library_;
  Session session_{library_, "nvmlInit_v2", library_.require<int (*)()>("nvmlInit_v2")(),
                   "nvmlShutdown"};
  nvmlDevice device_ = nullptr;
  int (*utilization_)(nvmlDevice,
                      nvmlUtilization*) = library_.find("nvmlDeviceGetUtilizationRates");
  int (*clock_)(nvmlDevice, int, unsigned int*) = library_.find("nvmlDeviceGetClockInfo");
  int (*temperature_)(nvmlDevice, int, unsigned int*) = library_.find("nvmlDeviceGetTemperature");
  int (*power_)(nvmlDevice, unsigned int*) = library_.find("nvmlDeviceGetPowerUsage");
  int (*power_limit_)(nvmlDevice, unsigned int*) = library_.find("nvmlDeviceGetEnforcedPowerLimit");
  int (*ecc_)(nvmlDevice, unsigned int*, unsigned int*) = library_.find("nvmlDeviceGetEccMode");
  int (*energy_)(nvmlDevice,
                 unsigned long long*) = library_.find("nvmlDeviceGetTotalEnergyConsumption");
  /// The name since NVML 12, and the one before.
  int (*reasons_)(nvmlDevice, unsigned long long*) = library_.first_of(
      "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons");
};

class AmdSmi {
 public:
  AmdSmi(const std::vector<std::string>& names, const GpuIdentity& gpu) : library_(names) {
    unsigned int domain = 0, bus = 0, device = 0, function = 0;
    const bool is_address =
        std::sscanf(gpu.pci_bus_id.c_str(), "%x:%x:%x.%x", &domain, &bus, &device, &function) == 4;
    const uint64_t packed = uint64_t{domain} << 16 | bus << 8 | device << 3 | function;
    const auto find =
        library_.require<int (*)(uint64_t, amdsmiDevice*)>("amdsmi_get_processor_handle_from_bdf");
    if (is_address && find(packed, &device_) == kSuccess) return;
    throw std::runtime_error(fmt::format("{}: knows no GPU {}", library_.name(), name_of(gpu)));
  }

  SystemReading read() const {
    SystemReading reading;
    amdsmiUsage use{};
    if (succeeds(activity_, device_, &use)) reading["utilization_percent"] = use.percent[0];
    amdsmiClock clock{};
    if (succeeds(clock_, device_, kGraphicsClock, &clock) && clock.MHz > 0)
      reading["clock_MHz"] = clock.MHz;
    int64_t degrees = 0;
    if (succeeds(temperature_, device_, kHotspot, kCurrent, &degrees))
      reading["temperature_celsius"] = static_cast<double>(degrees);
    uint64_t count = 0, timestamp = 0;
    float microjoules = 0;
    // The second die of a two-die card counts nothing: its energy is in the first one's.
    if (succeeds(energy_, device_, &count, &microjoules, &timestamp) && count > 0)
      reading["energy_joules"] = static_cast<double>(count) * double{microjoules} / 1e6;
    return reading;
  }
  std::string source() const { return fmt::format("AMD SMI ({})", library_.name()); }

 private:
  // amdsmi_engine_usage_t, amdsmi_clk_info_t; what follows the first values is not read.
  struct amdsmiUsage {
    uint32_t percent[16];
  };
  struct amdsmiClock {
    uint32_t MHz;
    uint32_t others[15];
  };
  using amdsmiDevice = void*;
  static constexpr uint64_t kGpus = 2;      // AMDSMI_INIT_AMD_GPUS
  static constexpr int kGraphicsClock = 0;  // AMDSMI_CLK_TYPE_GFX
  static constexpr int kHotspot = 1;        // AMDSMI_TEMPERATURE_TYPE_HOTSPOT
  static constexpr int kCurrent = 0;        // AMDSMI_TEMP_CURRENT

  SharedLibrary library_;
  Session session_{library_, "amdsmi_init",
                   library_.require<int (*)(uint64_t)>("amdsmi_init")(kGpus), "amdsmi_shut_down"};
  amdsmiDevice device_ = nullptr;
  int (*activity_)(amdsmiDevice, amdsmiUsage*) = library_.find("amdsmi_get_gpu_activity");
  int (*clock_)(amdsmiDevice, int, amdsmiClock*) = library_.find("amdsmi_get_clock_info");
  int (*temperature_)(amdsmiDevice, int, int, int64_t*) = library_.find("amdsmi_get_temp_metric");
  int (*energy_)(amdsmiDevice, uint64_t*, float*,
                 uint64_t*) = library_.find("amdsmi_get_energy_count");
};

constexpr int kCurrent = 0;              // RSMI_TEMP_CURRENT
constexpr uint32_t kEdgeSensor = 0;      // RSMI_TEMP_TYPE_EDGE
constexpr uint32_t kJunctionSensor = 1;  // RSMI_TEMP_TYPE_JUNCTION

/// "0000:c1:00.0" of ROCm SMI's packed address: domain in the high 32 bits, bus in bits 8 to 15,
/// device in 3 to 7, function in 0 to 2; the bits between hold a partition.
std::string bus_id_text(uint64_t packed) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", packed >> 32, packed >> 8 & 0xff,
                     packed >> 3 & 0x1f, packed & 0x7);
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

class RocmSmi {
 public:
  RocmSmi(const SystemSources& sources, const GpuIdentity& gpu) : library_(sources.rocm_smi) {
    device_ = find_device(gpu);
    const std::string bus_id = bus_id_of(device_);
    if (!bus_id.empty()) clock_file_ = clock_file(sources.sys, bus_id);
  }

  SystemReading read() const {
    SystemReading reading;
    uint32_t percent = 0;
    if (succeeds(busy_, device_, &percent)) reading["utilization_percent"] = percent;
    // A card that sleeps says 0, which is no clock of its work.
    const double hertz = host_machine::first_number(clock_file_).value_or(0);
    if (hertz > 0) reading["clock_MHz"] = hertz / 1e6;
    int64_t millidegrees = 0;
    if (succeeds(temperature_, device_, kJunctionSensor, kCurrent, &millidegrees) ||
        succeeds(temperature_, device_, kEdgeSensor, kCurrent, &millidegrees))
      reading["temperature_celsius"] = static_cast<double>(millidegrees) / 1e3;
    // The second die of a two-die card reports 0: its power is counted with the first one's.
    uint64_t microwatts = 0;
    if ((succeeds(average_power_, device_, 0, &microwatts) && microwatts > 0) ||
        (succeeds(socket_power_, device_, &microwatts) && microwatts > 0))
      reading["power_watts"] = static_cast<double>(microwatts) / 1e6;
    return reading;
  }
  std::string source() const {
    return fmt::format("ROCm SMI ({}){}", library_.name(),
                       clock_file_.empty() ? "" : " and amdgpu's files");
  }

 private:
  uint32_t find_device(const GpuIdentity& gpu) const {
    uint32_t count = 0;
    const auto status = library_.require<int (*)(uint32_t*)>("rsmi_num_monitor_devices")(&count);
    if (status != kSuccess) count = 0;
    // ROCm SMI counts all cards of the machine, HIP those that it was told to see.
    std::string wanted = gpu.pci_bus_id;
    std::ranges::transform(wanted, wanted.begin(), [](unsigned char c) { return std::tolower(c); });
    for (uint32_t device = 0; device < count; ++device) {
      const bool is_meant =
          wanted.empty() ? std::cmp_equal(device, gpu.index) : bus_id_of(device) == wanted;
      if (is_meant) return device;
    }
    throw std::runtime_error(
        fmt::format("{}: knows no GPU {} among its {}", library_.name(), name_of(gpu), count));
  }
  std::string bus_id_of(uint32_t device) const {
    uint64_t packed = 0;
    return succeeds(bus_id_, device, &packed) ? bus_id_text(packed) : std::string();
  }

  SharedLibrary library_;
  Session session_{library_, "rsmi_init", library_.require<int (*)(uint64_t)>("rsmi_init")(0),
                   "rsmi_shut_down"};
  uint32_t device_ = 0;
  fs::path clock_file_;
  int (*busy_)(uint32_t, uint32_t*) = library_.find("rsmi_dev_busy_percent_get");
  int (*temperature_)(uint32_t, uint32_t, int,
                      int64_t*) = library_.find("rsmi_dev_temp_metric_get");
  int (*average_power_)(uint32_t, uint32_t, uint64_t*) = library_.find("rsmi_dev_power_ave_get");
  int (*socket_power_)(uint32_t, uint64_t*) = library_.find("rsmi_dev_current_socket_power_get");
  int (*bus_id_)(uint32_t, uint64_t*) = library_.find("rsmi_dev_pci_id_get");
};

}  // namespace

SystemReader nvml_reader(const SystemSources& sources, const GpuIdentity& gpu) {
  const auto nvml = std::make_shared<Nvml>(sources.nvml, gpu);
  return {nvml->source(), [nvml] { return nvml->read(); }, nvml->facts()};
}

SystemReader amd_smi_reader(const SystemSources& sources, const GpuIdentity& gpu) {
  const auto amd_smi = std::make_shared<AmdSmi>(sources.amd_smi, gpu);
  return {amd_smi->source(), [amd_smi] { return amd_smi->read(); }};
}

SystemReader rocm_smi_reader(const SystemSources& sources, const GpuIdentity& gpu) {
  const auto rocm_smi = std::make_shared<RocmSmi>(sources, gpu);
  return {rocm_smi->source(), [rocm_smi] { return rocm_smi->read(); }};
}

}  // namespace tinyllama::instruments

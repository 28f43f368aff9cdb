// Readings of GPUs. NVIDIA's come from NVML. AMD's come from amdgpu's files (kernel.org, "GPU
// Power/Thermal Controls and Monitoring"), which AMD's libraries read as well; only the counter of
// energy is AMD SMI's. The few declarations are written out, so that no header of the vendors' is
// needed to build: NVML's are part of its stable interface (NVML API Reference Guide), AMD SMI's
// are those that stayed the same from release to release (amd_smi/amdsmi.h of ROCm 6 and 7).
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <type_traits>

#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/instruments/system_sampler.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPowerOf = "power_of";
constexpr int kSuccess = 0;  // NVML_SUCCESS, AMDSMI_STATUS_SUCCESS

/// Calls a function of a library, where it has it.
template <typename... Arguments>
bool succeeds(int (*function)(Arguments...), std::type_identity_t<Arguments>... arguments) {
  return function != nullptr && function(arguments...) == kSuccess;
}

/// With "libx.so.*" as every major version that it may stand for, the newest first.
std::vector<std::string> with_every_number(const std::vector<std::string>& names) {
  constexpr int newest = 99;
  std::vector<std::string> all;
  for (const std::string& name : names) {
    if (!name.ends_with(".*")) {
      all.push_back(name);
      continue;
    }
    for (int number = newest; number > 0; --number)
      all.push_back(name.substr(0, name.size() - 1) + std::to_string(number));
  }
  return all;
}

/// A library that is looked for when the program runs, so that the program starts without it. It is
/// initialised, and shut down at the end.
class VendorLibrary {
 public:
  /// The first of `names` that can be loaded, each a file's path or a name that the dynamic linker
  /// knows; throws std::runtime_error with the first one's reason where none can, or `init` fails.
  template <typename... Arguments>
  VendorLibrary(const std::vector<std::string>& names, const char* shutdown, const char* init,
                Arguments... arguments) {
    std::string reason;
    for (const std::string& name : with_every_number(names)) {
      name_ = name;
      // It stays loaded: vendors' libraries leave threads and exit handlers behind.
      handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
      if (handle_ != nullptr) break;
      const char* said = ::dlerror();
      if (reason.empty()) reason = said != nullptr ? said : name + ": cannot be loaded";
    }
    if (handle_ == nullptr) {
      throw std::runtime_error(reason.empty() ? "no library is named" : reason);
    }
    shutdown_ = require<int (*)()>(shutdown);
    const int status = require<int (*)(Arguments...)>(init)(arguments...);
    if (status != kSuccess)
      throw std::runtime_error(fmt::format("{}: {} returned {}", name_, init, status));
  }
  ~VendorLibrary() { shutdown_(); }
  VendorLibrary(const VendorLibrary&) = delete;
  VendorLibrary& operator=(const VendorLibrary&) = delete;

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
  Function find(const char* function) const { return {::dlsym(handle_, function)}; }
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
  [[noreturn]] void reject(const std::string& bus_id) const {
    throw std::runtime_error(fmt::format("{}: knows no GPU {}", name_, bus_id));
  }

 private:
  std::string name_;
  void* handle_ = nullptr;
  int (*shutdown_)() = nullptr;
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
  Nvml(const std::vector<std::string>& names, const std::string& bus_id)
      : library_(names, "nvmlShutdown", "nvmlInit_v2") {
    const auto find =
        library_.require<int (*)(const char*, nvmlDevice*)>("nvmlDeviceGetHandleByPciBusId_v2");
    if (find(bus_id.c_str(), &device_) != kSuccess) library_.reject(bus_id);
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
    if (succeeds(mig_, device_, &value, &pending) && value != 0)
      known[kPowerOf] = "the card, all its MIG instances";
    return known;
  }
  std::string source() const { return fmt::format("NVML ({})", library_.name()); }

 private:
  VendorLibrary library_;
  nvmlDevice device_ = nullptr;
  int (*utilization_)(nvmlDevice,
                      nvmlUtilization*) = library_.find("nvmlDeviceGetUtilizationRates");
  int (*clock_)(nvmlDevice, int, unsigned int*) = library_.find("nvmlDeviceGetClockInfo");
  int (*temperature_)(nvmlDevice, int, unsigned int*) = library_.find("nvmlDeviceGetTemperature");
  int (*power_)(nvmlDevice, unsigned int*) = library_.find("nvmlDeviceGetPowerUsage");
  int (*power_limit_)(nvmlDevice, unsigned int*) = library_.find("nvmlDeviceGetEnforcedPowerLimit");
  int (*ecc_)(nvmlDevice, unsigned int*, unsigned int*) = library_.find("nvmlDeviceGetEccMode");
  int (*mig_)(nvmlDevice, unsigned int*, unsigned int*) = library_.find("nvmlDeviceGetMigMode");
  int (*energy_)(nvmlDevice,
                 unsigned long long*) = library_.find("nvmlDeviceGetTotalEnergyConsumption");
  /// The name since NVML 12, and the one before.
  int (*reasons_)(nvmlDevice, unsigned long long*) = library_.first_of(
      "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons");
};

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

class AmdSmi {
 public:
  AmdSmi(const std::vector<std::string>& names, const std::string& bus_id)
      : library_(names, "amdsmi_shut_down", "amdsmi_init", kGpus) {
    unsigned int domain = 0, bus = 0, device = 0, function = 0;
    std::sscanf(bus_id.c_str(), "%x:%x:%x.%x", &domain, &bus, &device, &function);
    const uint64_t packed = uint64_t{domain} << 16 | bus << 8 | device << 3 | function;
    const auto find =
        library_.require<int (*)(uint64_t, void**)>("amdsmi_get_processor_handle_from_bdf");
    if (find(packed, &device_) != kSuccess) library_.reject(bus_id);
  }

  /// Since some time past; 0 where the card counts none. The second die of a two-die card counts
  /// nothing: its energy is in the first one's.
  double joules() const {
    uint64_t count = 0, timestamp = 0;
    float microjoules = 0;
    if (!succeeds(energy_, device_, &count, &microjoules, &timestamp)) return 0;
    return static_cast<double>(count) * double{microjoules} / 1e6;
  }
  const std::string& name() const { return library_.name(); }

 private:
  static constexpr uint64_t kGpus = 2;  // AMDSMI_INIT_AMD_GPUS

  VendorLibrary library_;
  void* device_ = nullptr;
  int (*energy_)(void*, uint64_t*, float*, uint64_t*) = library_.find("amdsmi_get_energy_count");
};

class AmdGpu {
 public:
  AmdGpu(const SystemSources& sources, const std::string& bus_id)
      : card_(card_folder(sources, bus_id)) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(card_ / "hwmon", none))
      if (fs::exists(entry.path() / "freq1_input", none)) monitor_ = entry.path();
    if (monitor_.empty())
      throw std::runtime_error(fmt::format("amdgpu has no sensors of a GPU {}", bus_id));
    // The first partition has the card's own address.
    const auto mode = host_machine::first_line(card_ / "current_compute_partition");
    const bool is_partition =
        card_.filename() != lower_case(bus_id) || (mode && !mode->empty() && *mode != "SPX");
    if (is_partition) facts_[kPowerOf] = "the card, all its partitions";
    try {
      energy_ = std::make_unique<AmdSmi>(sources.amd_smi, card_.filename().string());
      source_ += fmt::format(" and AMD SMI ({})", energy_->name());
    } catch (const std::runtime_error& error) {
      source_ += fmt::format(" (no counter of energy: {})", error.what());
    }
  }

  SystemReading read() const {
    SystemReading reading;
    if (const auto percent = host_machine::first_number(card_ / "gpu_busy_percent"))
      reading["utilization_percent"] = *percent;
    // 0 is no figure: a card that sleeps says it of its clock, and the second die of a two-die card
    // of its power, which is counted with the first one's.
    const auto add = [&](const char* name, double value) {
      if (value > 0) reading[name] = value;
    };
    add("clock_MHz", first_of({"freq1_input"}) / 1e6);
    // The junction's, or where there is no such sensor the edge's.
    add("temperature_celsius", first_of({"temp2_input", "temp1_input"}) / 1e3);
    add("power_watts", first_of({"power1_average", "power1_input"}) / 1e6);
    if (energy_) add("energy_joules", energy_->joules());
    return reading;
  }
  const std::string& source() const { return source_; }
  const std::map<std::string, std::string>& facts() const { return facts_; }

 private:
  double first_of(std::initializer_list<const char*> files) const {
    for (const char* file : files) {
      const auto value = host_machine::first_number(monitor_ / file);
      if (value && *value > 0) return *value;
    }
    return 0;
  }

  fs::path card_;
  fs::path monitor_;
  std::unique_ptr<AmdSmi> energy_;
  std::string source_ = "amdgpu's files";
  std::map<std::string, std::string> facts_;
};

/// Whoever reads the source alone must not take another's power for this device's.
SystemReader with_power_of(SystemReader reader, const std::string& power_of) {
  if (!power_of.empty()) reader.facts.emplace(kPowerOf, power_of);
  const auto found = reader.facts.find(kPowerOf);
  if (found != reader.facts.end())
    reader.source += fmt::format("; power and energy are of {}", found->second);
  return reader;
}

}  // namespace

std::string power_of_module(const DeviceDescription& device) {
  const std::string module = "the module, both of its dies";
  if (device.name.find("MI250") != std::string::npos) return module;
  // A product's name says that it is another.
  if (device.architecture != "gfx90a" || has_product_name(device)) return {};
  return device.multiprocessors == 110 ? module : module + ", where it is an MI250";
}

fs::path card_folder(const SystemSources& sources, const std::string& bus_id) {
  const fs::path devices = sources.sys / "bus/pci/devices";
  const std::string address = lower_case(bus_id);
  const fs::path whole = devices / (address.substr(0, address.rfind('.')) + ".0");
  return fs::exists(devices / address) ? devices / address : whole;
}

SystemReader gpu_reader(Backend backend, const SystemSources& sources, const std::string& bus_id,
                        const std::string& power_of) {
  try {
    if (backend == Backend::hip) {
      const auto gpu = std::make_shared<AmdGpu>(sources, bus_id);
      return with_power_of({gpu->source(), [gpu] { return gpu->read(); }, gpu->facts()}, power_of);
    }
    const auto nvml = std::make_shared<Nvml>(sources.nvml, bus_id);
    return with_power_of({nvml->source(), [nvml] { return nvml->read(); }, nvml->facts()},
                         power_of);
  } catch (const std::runtime_error& error) {
    return {fmt::format("none ({})", error.what()), [] { return SystemReading(); }};
  }
}

}  // namespace tinyllama::instruments

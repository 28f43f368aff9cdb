// Sensor readings of a device while it works (utilization, clock, temperature, power), and a thread
// that takes them at intervals during a run.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/timer.hpp"

namespace tinyllama::instruments {

/// One reading of a device: utilization_percent, clock_MHz, temperature_celsius and power_watts; of
/// a GPU also energy_joules, counted from an unknown moment on, and limited_by_power,
/// _by_temperature and _by_hardware, 1 where that keeps its clock down. What it does not report is
/// absent.
using SystemReading = std::map<std::string, double>;

struct SystemReader {
  std::string source;  ///< for people to read: "NVML (libnvidia-ml.so.1)"
  std::function<SystemReading()> read;
  /// That do not change: power_limit_W, ecc, and power_of where power, energy and their source are
  /// of more than the device.
  std::map<std::string, std::string> facts{};
  /// A thread that reads would take time from what is measured, on a CPU: read before and after.
  bool only_at_ends = false;
};

/// Where readings are looked for; tests name folders and libraries of their own.
struct SystemSources {
  std::filesystem::path sys = "/sys";
  std::filesystem::path proc = "/proc";
  std::vector<std::string> nvml = {"libnvidia-ml.so.1"};
  /// Each release of ROCm has another number; the plain name comes with the files for developers.
  std::vector<std::string> amd_smi = {"libamd_smi.so", "libamd_smi.so.*",
                                      "/opt/rocm/lib/libamd_smi.so",
                                      "/opt/rocm/lib/libamd_smi.so.*"};
};

/// Utilization is this process's share of `processors`, clock their mean,
/// temperature that of the hottest package, power the sum of the packages' (RAPL; where the
/// kernel lets us read it). Utilization and power are means since the reading before.
SystemReader cpu_reader(const SystemSources& sources, const std::vector<int>& processors);
/// Why the processor packages' energy cannot be read, and what to do; empty where it can.
std::string why_no_energy(const SystemSources& sources);
/// Reads NVML, or amdgpu's files and AMD SMI. `bus_id`: "0000:c1:00.0". Where these do not answer
/// or do not know the card, the reader has no readings and says so in its source.
/// `power_of`: what is known to be measured together with the device's power, unless it is a part
/// of a card.
SystemReader gpu_reader(Backend backend, const SystemSources& sources, const std::string& bus_id,
                        const std::string& power_of = {});
/// The files of a card. The runtime may give the number of a partition in the place of the PCI
/// function (of an MI300 in CPX mode: "0000:c1:00.3"); the files are then the whole card's.
std::filesystem::path card_folder(const SystemSources& sources, const std::string& bus_id);

/// What is measured together with this device's power: MI250 and MI250X are two dies of one module,
/// each a device. Empty where nothing is known to be.
std::string power_of_module(const DeviceDescription& device);

/// The reader for this device.
SystemReader system_reader(const Device& device);

struct ReadingStatistics {
  double minimum = 0;
  double mean = 0;  ///< of the samples
  double maximum = 0;
  int64_t samples = 0;
};

struct SystemSamples {
  std::string source;
  double interval_seconds = 0;  ///< as asked for
  /// Statistics of each reading that the device reported. Where there is a counter of energy,
  /// power_watts is computed from its first and last reading.
  std::map<std::string, ReadingStatistics> readings;
};

/// One reading whose power is the mean since the reading before; of the others, which are of this
/// moment alone, nothing.
SystemSamples power_since_last(const SystemReader& reader);

/// Reads from its construction until stop(). It uses less than one percent of a processor: where a
/// look costs more than that share of the interval, the pauses become longer, and the samples
/// fewer.
class SystemSampler {
 public:
  static constexpr std::chrono::milliseconds kDefaultInterval{100};

  explicit SystemSampler(SystemReader reader,
                         std::chrono::milliseconds interval = kDefaultInterval);
  ~SystemSampler();
  SystemSampler(const SystemSampler&) = delete;
  SystemSampler& operator=(const SystemSampler&) = delete;

  /// Ends the thread and returns what it saw; at least one look, however short the run. The second
  /// call returns the same again.
  SystemSamples stop();

 private:
  void watch();
  void look();

  SystemReader reader_;
  std::chrono::milliseconds interval_;
  SystemSamples samples_;  // the thread's alone until it has ended
  int64_t looks_ = 0;
  struct EnergyReading {
    TimePoint at;
    double joules = 0;
  };
  std::optional<EnergyReading> first_energy_;
  EnergyReading last_energy_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tinyllama::instruments

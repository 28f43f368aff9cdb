// Readings of the processor, from the kernel's files.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <utility>

#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/system_sampler.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;
using host_machine::first_line;
using host_machine::first_number;
using host_machine::process_seconds;

/// Each file read costs some microseconds, and some drivers interrupt the processor to answer.
constexpr size_t kMostClocksRead = 8;

/// The entries of a folder in a fixed order; none where it cannot be read.
std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code none;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end;
       entry.increment(none)) {
    found.push_back(entry->path());
  }
  std::ranges::sort(found);
  return found;
}

/// The file with a package's temperature among those of one monitor. coretemp (Intel) labels it
/// "Package id N", k10temp (AMD) "Tdie" or, where an offset for the fan may be added, "Tctl".
fs::path package_temperature(const fs::path& monitor) {
  fs::path best = monitor / "temp1_input";
  for (const fs::path& file : entries(monitor)) {
    const std::string name = file.filename().string();
    if (!name.starts_with("temp") || !name.ends_with("_label")) continue;
    const std::string label = first_line(file).value_or("");
    const fs::path input = monitor / (name.substr(0, name.find('_')) + "_input");
    if (label.starts_with("Package") || label == "Tdie") return input;
    if (label == "Tctl") best = input;
  }
  return best;
}

/// Files of the energy that processor packages have used (RAPL), in microjoules.
std::vector<fs::path> package_energies(const fs::path& sys) {
  std::vector<fs::path> files;
  for (const fs::path& zone : entries(sys / "class/powercap")) {
    if (first_line(zone / "name").value_or("").starts_with("package-"))
      files.push_back(zone / "energy_uj");
  }
  return files;
}

/// What the kernel's files say of the processors that we may use: the files are found once, and
/// read at each look.
class CpuSensors {
 public:
  CpuSensors(const SystemSources& sources, const std::vector<int>& processors)
      : processors_(processors), table_(sources.proc / "cpuinfo") {
    std::error_code none;
    for (const int processor : processors_) {
      const fs::path file =
          sources.sys / fmt::format("devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", processor);
      if (fs::exists(file, none)) clocks_.push_back(file);
    }
    source_ += clocks_.empty() ? ", /proc/cpuinfo" : ", cpufreq";
    find_temperatures(sources.sys);
    find_energy_counters(sources.sys);
  }

  const std::string& source() const { return source_; }

  SystemReading read() {
    const auto now = Clock::now();
    const double used = process_seconds();
    const double passed = seconds_since(std::exchange(time_before_, now), now);
    const double worked = used - std::exchange(used_before_, used);
    SystemReading reading;
    if (passed > 0) {
      const double usable = std::max<double>(1, static_cast<double>(processors_.size()));
      // The two clocks are read one after the other, so that full use may come out above 100.
      reading["utilization_percent"] = std::min(100.0, 100 * worked / (passed * usable));
    }
    const double kilohertz = clocks_.empty() ? clock_from_table() : clock_from_drivers();
    if (kilohertz > 0) reading["clock_MHz"] = kilohertz / 1e3;
    for (const fs::path& file : temperatures_) {
      const auto millidegrees = first_number(file);
      if (!millidegrees) continue;
      double& hottest = reading.try_emplace("temperature_celsius", -1e3).first->second;
      hottest = std::max(hottest, *millidegrees / 1e3);
    }
    const double microjoules = energy_used();
    if (passed > 0 && !std::isnan(microjoules)) reading["power_watts"] = microjoules / 1e6 / passed;
    return reading;
  }

 private:
  void find_temperatures(const fs::path& sys) {
    const auto add = [this](const fs::path& file, const char* source) {
      if (!first_number(file)) return;
      if (temperatures_.empty()) source_ += source;
      temperatures_.push_back(file);
    };
    for (const fs::path& monitor : entries(sys / "class/hwmon")) {
      const auto driver = first_line(monitor / "name");
      if (driver == "coretemp" || driver == "k10temp") add(package_temperature(monitor), ", hwmon");
    }
    if (!temperatures_.empty()) return;
    for (const fs::path& zone : entries(sys / "class/thermal")) {
      const auto type = first_line(zone / "type");
      if (type == "x86_pkg_temp" || type == "cpu-thermal" || type == "cpu_thermal")
        add(zone / "temp", ", thermal zones");
    }
  }

  void find_energy_counters(const fs::path& sys) {
    for (const fs::path& file : package_energies(sys)) {
      // A counter that we may not read (the kernel's rule for all but root) is no counter of ours.
      const auto energy = first_number(file);
      if (!energy) continue;
      const double range = first_number(file.parent_path() / "max_energy_range_uj").value_or(0);
      energies_.push_back({file, range, *energy});
    }
    if (!energies_.empty()) source_ += ", RAPL";
  }

  /// Mean kHz, 0 where unknown. Some files at each look, so that over the run every processor
  /// counts alike.
  double clock_from_drivers() {
    double sum = 0;
    int count = 0;
    for (size_t i = 0; i < std::min(clocks_.size(), kMostClocksRead); ++i) {
      const double kilohertz = first_number(clocks_[next_clock_]).value_or(0);
      next_clock_ = (next_clock_ + 1) % clocks_.size();
      if (kilohertz <= 0) continue;
      sum += kilohertz;
      ++count;
    }
    return count == 0 ? 0 : sum / count;
  }
  /// The same where there are no drivers (virtual machines).
  double clock_from_table() const {
    std::ifstream stream(table_);
    int processor = -1;
    double sum = 0;
    int count = 0;
    for (std::string line; std::getline(stream, line);) {
      const auto colon = line.find(':');
      if (colon == std::string::npos) continue;
      if (line.starts_with("processor")) processor = std::atoi(line.c_str() + colon + 1);
      if (!line.starts_with("cpu MHz") || !std::ranges::count(processors_, processor)) continue;
      sum += std::atof(line.c_str() + colon + 1) * 1e3;
      ++count;
    }
    return count == 0 ? 0 : sum / count;
  }

  /// Microjoules of all packages since the last call; not a number where a counter cannot be
  /// followed.
  double energy_used() {
    constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
    double microjoules = energies_.empty() ? unknown : 0;
    for (EnergyCounter& counter : energies_) {
      const double now = first_number(counter.file).value_or(unknown);
      double used = now - std::exchange(counter.before, now);
      if (used < 0) used += counter.range;
      microjoules += used < 0 ? unknown : used;
    }
    return microjoules;
  }

  /// Of a processor package (RAPL), in microjoules; it only grows until it starts anew at `range`.
  struct EnergyCounter {
    fs::path file;
    double range;
    double before;
  };

  std::string source_ = "getrusage";
  std::vector<int> processors_;
  fs::path table_;
  std::vector<fs::path> clocks_;
  size_t next_clock_ = 0;
  std::vector<fs::path> temperatures_;
  std::vector<EnergyCounter> energies_;
  TimePoint time_before_ = Clock::now();
  double used_before_ = process_seconds();
};

}  // namespace

SystemReader cpu_reader(const SystemSources& sources, const std::vector<int>& processors) {
  CpuSensors sensors(sources, processors);
  return {sensors.source(), [sensors]() mutable { return sensors.read(); }};
}

std::string why_no_energy(const SystemSources& sources) {
  const std::vector<fs::path> files = package_energies(sources.sys);
  if (files.empty()) return "no package in /sys/class/powercap; virtual machines often have none";
  for (const fs::path& file : files) {
    if (!first_number(file))
      return fmt::format(
          "{} cannot be read; the kernel lets root alone, who may allow it (chmod a+r)",
          file.lexically_relative(sources.sys.parent_path()).string());
  }
  return {};
}

}  // namespace tinyllama::instruments

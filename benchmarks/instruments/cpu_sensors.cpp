// Readings of the processor, from the kernel's files.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "benchmarks/instruments/host_machine.hpp"
#include "benchmarks/instruments/system_sampler.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Each file read costs some microseconds, and some drivers interrupt the processor to answer.
constexpr size_t kMostClocksRead = 8;

std::optional<double> read_number(const fs::path& file) {
  std::ifstream stream(file);
  double value = 0;
  if (!(stream >> value)) return std::nullopt;
  return value;
}

std::string read_line(const fs::path& file) {
  return host_machine::first_line(file).value_or("");
}

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

/// Processor seconds that all threads of this process have used.
double process_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  constexpr double seconds_per_microsecond = 1e-6;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * seconds_per_microsecond;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// MHz of the given processors, from their drivers or, where they have none (virtual machines),
/// from the kernel's table.
class ProcessorClock {
 public:
  ProcessorClock(const SystemSources& sources, std::vector<int> processors)
      : table_(sources.proc / "cpuinfo"), processors_(std::move(processors)) {
    std::error_code none;
    for (const int processor : processors_) {
      const fs::path file =
          sources.sys / fmt::format("devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", processor);
      if (fs::exists(file, none)) files_.push_back(file);
    }
  }

  std::optional<double> megahertz() { return files_.empty() ? from_table() : from_drivers(); }
  std::string source() const { return files_.empty() ? "/proc/cpuinfo" : "cpufreq"; }

 private:
  /// Some at each reading, so that over the run every processor counts alike.
  std::optional<double> from_drivers() {
    constexpr double kilohertz_per_megahertz = 1e3;
    double sum = 0;
    int count = 0;
    for (size_t i = 0; i < std::min(files_.size(), kMostClocksRead); ++i) {
      const auto kilohertz = read_number(files_[next_]);
      next_ = (next_ + 1) % files_.size();
      if (!kilohertz || *kilohertz <= 0) continue;
      sum += *kilohertz / kilohertz_per_megahertz;
      ++count;
    }
    return count == 0 ? std::nullopt : std::optional(sum / count);
  }
  std::optional<double> from_table() const {
    std::ifstream stream(table_);
    int processor = -1;
    double sum = 0;
    int count = 0;
    for (std::string line; std::getline(stream, line);) {
      const auto colon = line.find(':');
      if (colon == std::string::npos) continue;
      if (line.starts_with("processor")) processor = std::atoi(line.c_str() + colon + 1);
      if (!line.starts_with("cpu MHz") || !std::ranges::count(processors_, processor)) continue;
      sum += std::atof(line.c_str() + colon + 1);
      ++count;
    }
    return count == 0 || sum <= 0 ? std::nullopt : std::optional(sum / count);
  }

  fs::path table_;
  std::vector<int> processors_;
  std::vector<fs::path> files_;
  size_t next_ = 0;
};

/// The file with a package's temperature among those of one monitor. coretemp (Intel) labels it
/// "Package id N", k10temp (AMD) "Tdie" or, where an offset for the fan may be added, "Tctl".
fs::path package_temperature(const fs::path& monitor) {
  fs::path best = monitor / "temp1_input";
  for (const fs::path& file : entries(monitor)) {
    const std::string name = file.filename().string();
    if (!name.starts_with("temp") || !name.ends_with("_label")) continue;
    const std::string label = read_line(file);
    const fs::path input = monitor / (name.substr(0, name.find('_')) + "_input");
    if (label.starts_with("Package") || label == "Tdie") return input;
    if (label == "Tctl") best = input;
  }
  return best;
}

/// The processor packages' temperatures.
class PackageTemperature {
 public:
  explicit PackageTemperature(const fs::path& sys) {
    for (const fs::path& monitor : entries(sys / "class/hwmon")) {
      const std::string driver = read_line(monitor / "name");
      if (driver == "coretemp" || driver == "k10temp") add(package_temperature(monitor), "hwmon");
    }
    if (!files_.empty()) return;
    constexpr std::array<std::string_view, 3> types = {"x86_pkg_temp", "cpu-thermal",
                                                       "cpu_thermal"};
    for (const fs::path& zone : entries(sys / "class/thermal")) {
      if (std::ranges::count(types, read_line(zone / "type"))) add(zone / "temp", "thermal zones");
    }
  }

  /// Empty where there is none to read.
  const std::string& source() const { return source_; }
  std::optional<double> hottest_celsius() const {
    constexpr double degrees_per_millidegree = 1e-3;
    std::optional<double> highest;
    for (const fs::path& file : files_) {
      const auto value = read_number(file);
      if (value) highest = std::max(highest.value_or(*value), *value);
    }
    if (highest) *highest *= degrees_per_millidegree;
    return highest;
  }

 private:
  void add(const fs::path& file, const char* source) {
    if (!read_number(file)) return;
    files_.push_back(file);
    source_ = source;
  }
  std::vector<fs::path> files_;
  std::string source_;
};

/// The energy counters of the processor packages (RAPL), which only grow until they start anew.
class PackagePower {
 public:
  explicit PackagePower(const fs::path& sys) {
    for (const fs::path& zone : entries(sys / "class/powercap")) {
      if (!read_line(zone / "name").starts_with("package-")) continue;
      // A counter that we may not read (the kernel's rule for all but root) is no counter of ours.
      const auto energy = read_number(zone / "energy_uj");
      if (!energy) continue;
      const double range = read_number(zone / "max_energy_range_uj").value_or(0);
      zones_.push_back({zone / "energy_uj", range, *energy});
    }
  }

  bool any() const { return !zones_.empty(); }
  /// Mean power since the last call. Nothing where a counter cannot be followed.
  std::optional<double> watts(double seconds) {
    constexpr double joules_per_microjoule = 1e-6;
    constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
    double microjoules = any() && seconds > 0 ? 0 : unknown;
    for (Zone& zone : zones_) {
      const double now = read_number(zone.file).value_or(unknown);
      double used = now - std::exchange(zone.before, now);
      if (used < 0) used += zone.range;
      microjoules += used < 0 ? unknown : used;
    }
    if (std::isnan(microjoules)) return std::nullopt;
    return microjoules * joules_per_microjoule / seconds;
  }

 private:
  struct Zone {
    fs::path file;
    double range;   ///< microjoules at which the counter starts anew
    double before;  ///< microjoules
  };
  std::vector<Zone> zones_;
};

class CpuReader : public SystemReader {
 public:
  CpuReader(const SystemSources& sources, std::vector<int> processors)
      : usable_processors_(std::max<double>(1, static_cast<double>(processors.size()))),
        clock_(sources, std::move(processors)),
        temperature_(sources.sys),
        power_(sources.sys),
        time_before_(Clock::now()),
        processor_seconds_before_(process_seconds()) {}

  SystemReading read() override {
    const auto now = Clock::now();
    const double used = process_seconds();
    const std::chrono::duration<double> passed = now - std::exchange(time_before_, now);
    SystemReading reading;
    const double worked = used - std::exchange(processor_seconds_before_, used);
    if (passed.count() > 0) {
      // The two clocks are read one after the other, so that full use may come out above 100.
      reading.utilization_percent =
          std::min(100.0, 100 * worked / (passed.count() * usable_processors_));
    }
    reading.power_watts = power_.watts(passed.count());
    reading.clock_MHz = clock_.megahertz();
    reading.temperature_celsius = temperature_.hottest_celsius();
    return reading;
  }
  std::string source() const override {
    std::vector<std::string> parts = {"getrusage", clock_.source()};
    if (!temperature_.source().empty()) parts.push_back(temperature_.source());
    if (power_.any()) parts.push_back("RAPL");
    return fmt::format("{}", fmt::join(parts, ", "));
  }

 private:
  double usable_processors_;
  ProcessorClock clock_;
  PackageTemperature temperature_;
  PackagePower power_;
  Clock::time_point time_before_;
  double processor_seconds_before_;
};

}  // namespace

std::unique_ptr<SystemReader> cpu_reader(const SystemSources& sources,
                                         std::vector<int> processors) {
  return std::make_unique<CpuReader>(sources, std::move(processors));
}

}  // namespace tinyllama::instruments

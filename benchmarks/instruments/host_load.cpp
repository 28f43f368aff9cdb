#include "benchmarks/instruments/host_load.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "benchmarks/instruments/host_machine.hpp"
#include "core/data_folder.hpp"

namespace tinyllama::instruments {
namespace {

// "1.8 of 3.5 GHz", where the kernel was told to stay below what the processor can.
std::string clock_limit() {
  const std::filesystem::path folder = "/sys/devices/system/cpu/cpu0/cpufreq";
  const auto allowed = host_machine::first_number(folder / "scaling_max_freq");
  const auto possible = host_machine::first_number(folder / "cpuinfo_max_freq");
  if (!allowed || !possible || *allowed >= *possible) return {};
  return fmt::format("{:.2g} of {:.2g} GHz", 1e-6 * *allowed, 1e-6 * *possible);
}

}  // namespace

double HostLoad::taken_from(int threads) const {
  return std::clamp(others + stolen + threads - processors, 0.0, static_cast<double>(threads));
}

HostWatch::HostWatch(std::filesystem::path statistics)
    : statistics_(std::move(statistics)),
      processors_(host_machine::usable_processors()),
      start_(times()) {}

// Lines are "cpu0 user nice system idle iowait irq softirq steal ...", in ticks.
HostWatch::Times HostWatch::times() const {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  Times times = {.at = std::chrono::duration<double>(now).count(),
                 .own = host_machine::process_seconds()};
  const double tick = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  const std::set<int> usable(processors_.begin(), processors_.end());
  std::ifstream stream(statistics_);
  for (std::string line; std::getline(stream, line) && line.starts_with("cpu");) {
    std::istringstream words(line.substr(3));
    int number = 0;
    if (line[3] == ' ' || !(words >> number) || !usable.contains(number)) continue;
    double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, softirq = 0, steal = 0;
    words >> user >> nice >> system >> idle >> waiting >> irq >> softirq >> steal;
    times.busy += tick * (user + nice + system + irq + softirq);
    times.stolen += tick * steal;
  }
  return times;
}

HostLoad HostWatch::so_far() const {
  const Times end = times();
  const double seconds = end.at - start_.at;
  if (seconds <= 0) return {};
  const double busy = end.busy - start_.busy - (end.own - start_.own);
  return {seconds, static_cast<double>(processors_.size()), std::max(0.0, busy / seconds),
          std::max(0.0, (end.stolen - start_.stolen) / seconds)};
}

std::string what_disturbs(int threads) {
  // beyond what the kernel's own work and the step of its clock look like
  constexpr double least = 0.1;
  const HostWatch watch;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const HostLoad load = watch.so_far();
  std::vector<std::string> found;
  if (load.others >= least && load.taken_from(threads) >= least)
    found.push_back(
        fmt::format("other processes use {:.1f} of {:g} processors", load.others, load.processors));
  if (load.stolen >= least)
    found.push_back(fmt::format("other virtual machines take {:.1f} processors", load.stolen));
  if (const auto quota = host_machine::processor_quota(); quota && *quota < threads)
    found.push_back(fmt::format("a quota of {:g} processors for {} threads", *quota, threads));
  if (const std::string limit = clock_limit(); !limit.empty())
    found.push_back("the clock is limited to " + limit);
  if (found.empty()) return {};
  return fmt::format(
      "{}: times will scatter or be long; end what else runs, or compare interleaved "
      "({})",
      fmt::join(found, ", "), typed("compare run"));
}

}  // namespace tinyllama::instruments

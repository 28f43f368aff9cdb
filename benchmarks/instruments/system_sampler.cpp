#include "benchmarks/instruments/system_sampler.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "benchmarks/instruments/host_machine.hpp"

namespace tinyllama::instruments {
namespace {

/// A look may cost one part in so many of the time from one to the next.
constexpr int kPausePerCost = 100;

/// Processor time that the calling thread has used.
std::chrono::nanoseconds thread_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

void add(ReadingStatistics& statistics, double value) {
  if (statistics.samples == 0) statistics.minimum = statistics.maximum = value;
  statistics.minimum = std::min(statistics.minimum, value);
  statistics.maximum = std::max(statistics.maximum, value);
  ++statistics.samples;
  statistics.mean += (value - statistics.mean) / static_cast<double>(statistics.samples);
}

}  // namespace

SystemReader system_reader(const Device& device) {
  if (!device.is_gpu()) return cpu_reader({}, host_machine::usable_processors());
  return gpu_reader(device.backend(), {}, gpu_runtime::pci_bus_id(device.torch().index()),
                    power_of_module(device.description()));
}

SystemSamples power_since_last(const SystemReader& reader) {
  SystemSamples samples;
  samples.source = reader.source;
  const SystemReading reading = reader.read();
  const auto power = reading.find("power_watts");
  if (power != reading.end()) add(samples.readings["power_watts"], power->second);
  return samples;
}

SystemSampler::SystemSampler(SystemReader reader, std::chrono::milliseconds interval)
    : reader_(std::move(reader)), interval_(interval) {
  samples_.source = reader_.source;
  samples_.interval_seconds = std::chrono::duration<double>(interval_).count();
  const OnAllProcessors for_the_thread;
  thread_ = std::thread(&SystemSampler::watch, this);
}

SystemSampler::~SystemSampler() {
  stop();
}

SystemSamples SystemSampler::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  return samples_;
}

void SystemSampler::watch() {
  // An exception may not leave the thread, and a run is worth more than its samples.
  try {
    std::chrono::nanoseconds pause = interval_;
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, pause, [this] { return stopping_; })) {
      lock.unlock();
      const auto before = thread_time();
      look();
      pause =
          std::max<std::chrono::nanoseconds>(interval_, kPausePerCost * (thread_time() - before));
      lock.lock();
    }
    if (looks_ == 0) look();
  } catch (const std::exception& error) {
    samples_.source += fmt::format(" (ended: {})", error.what());
  }
}

void SystemSampler::look() {
  const SystemReading reading = reader_.read();
  const TimePoint now = Clock::now();
  const auto energy = reading.find("energy_joules");
  ++looks_;
  for (const auto& [name, value] : reading) {
    if (name != "energy_joules") add(samples_.readings[name], value);
  }
  if (energy == reading.end()) return;
  const EnergyReading read{now, energy->second};
  if (!first_energy_) first_energy_ = last_energy_ = read;
  const auto watts_since = [&](const EnergyReading& earlier) {
    return (read.joules - earlier.joules) / seconds_since(earlier.at, now);
  };
  if (now > last_energy_.at) {
    ReadingStatistics& power = samples_.readings["power_watts"];
    if (!reading.contains("power_watts")) add(power, watts_since(last_energy_));
    power.mean = watts_since(*first_energy_);
  }
  last_energy_ = read;
}

}  // namespace tinyllama::instruments

// Watches the device during a run: a thread of its own reads it now and then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "benchmarks/instruments/system_readings.hpp"

namespace tinyllama::instruments {

struct ReadingStatistics {
  double minimum = 0;
  double mean = 0;  ///< of the samples
  double maximum = 0;
  int64_t samples = 0;
};

struct SystemSamples {
  std::string source;
  double interval_seconds = 0;  ///< as asked for
  /// Of each of utilization_percent, clock_MHz, temperature_celsius and power_watts that the device
  /// reported; one that it did not is absent.
  std::map<std::string, ReadingStatistics> readings;
};

/// Reads from its construction until stop(). It uses less than one percent of a processor: where a
/// look costs more than that share of the interval, the pauses become longer, and the samples
/// fewer.
class SystemSampler {
 public:
  static constexpr std::chrono::milliseconds kDefaultInterval{100};

  /// Throws std::invalid_argument unless the interval is positive.
  explicit SystemSampler(std::unique_ptr<SystemReader> reader,
                         std::chrono::milliseconds interval = kDefaultInterval);
  explicit SystemSampler(const Device& device,
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

  std::unique_ptr<SystemReader> reader_;
  std::chrono::milliseconds interval_;
  SystemSamples samples_;  // the thread's alone until it has ended
  int64_t looks_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tinyllama::instruments

#include "benchmarks/harness/measure.hpp"

#include <ATen/ops/empty.h>

#include <chrono>

#include "benchmarks/instruments/operator_profile.hpp"
#include "benchmarks/instruments/timer.hpp"

namespace tinyllama::harness {
namespace {

// Iterations after which memory that has not settled will not.
constexpr int kMostUnsettled = 10;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

CacheFlusher::CacheFlusher(const instruments::Device& device) {
  constexpr int64_t unknown_cache_bytes = int64_t{64} << 20;
  const int64_t cache = device.description().last_level_cache_bytes;
  buffer_ = at::empty({2 * (cache > 0 ? cache : unknown_cache_bytes)},
                      at::TensorOptions().dtype(c10::ScalarType::Byte).device(device.torch()));
}

void CacheFlusher::flush() {
  buffer_.add_(1);
}

double warm_up(const instruments::Device& device, WorkItem& item, double min_seconds,
               double max_seconds) {
  const auto start = std::chrono::steady_clock::now();
  instruments::MemoryMeter memory(device);
  instruments::MemoryReading previous;
  double last = 0;
  for (int i = 0;; ++i) {
    memory.start();
    last = time_work(device, item, 1, nullptr).front();
    const auto reading = memory.read();
    const bool settled =
        i + 1 >= kMostUnsettled || (i > 0 && reading.allocations == previous.allocations &&
                                    reading.reserved_bytes == previous.reserved_bytes);
    previous = reading;
    const double elapsed = seconds_since(start);
    if ((settled && elapsed >= min_seconds) || elapsed + last > max_seconds) break;
  }
  return last;
}

Metering meter(const instruments::Device& device, WorkItem& item, int64_t foreign_bytes) {
  Metering metering;
  instruments::MemoryMeter memory(device);
  memory.start();
  // Observed as the run is, uncounted: a forward that is prepared for its backward is then not
  // slowed either (model/slowdown.hpp).
  instruments::count_operators([&] { item.prepare(); });
  const int64_t prepared_allocations = memory.read().allocations;
  metering.operators = instruments::count_operators(
      [&] { metering.profile = instruments::profile_operators(device, [&] { item.run(); }); });
  const auto reading = memory.read();
  metering.peak_bytes = reading.peak_bytes - foreign_bytes;
  metering.allocations = reading.allocations - prepared_allocations;
  metering.library_scratch_bytes = reading.scratch_peak_bytes;
  return metering;
}

std::vector<double> time_work(const instruments::Device& device, WorkItem& item, int64_t iterations,
                              CacheFlusher* flusher, const TimingBounds& bounds) {
  const auto prepare = [&] {
    if (bounds.state) bounds.state->PauseTiming();
    item.prepare();
    if (flusher) flusher->flush();
    if (bounds.state) bounds.state->ResumeTiming();
  };
  return instruments::time_iterations(
      device, iterations, prepare, [&] { item.run(); }, bounds.deadline);
}

}  // namespace tinyllama::harness

#include "benchmarks/harness/timing.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>

#include "benchmarks/instruments/memory_meter.hpp"
#include "core/statistics.hpp"

namespace tinyllama::harness {
namespace {

using instruments::Clock;
using instruments::seconds_since;

// How many iterations to start at once. A GPU is waited for after each batch, and waiting after
// each iteration would leave it idle in between; on a CPU a batch only spares the looking at
// clocks.
constexpr double kMostEvents = 10'000;  // each iteration of a GPU has its pair
double largest_batch(const instruments::Device& device, double iteration_seconds) {
  constexpr double seconds_of_a_cpu_batch = 1e-3;
  if (device.is_gpu()) return kMostEvents;
  return std::max(1.0, seconds_of_a_cpu_batch / iteration_seconds);
}

// The next batch after these samples; 0 where the goal is reached.
int64_t next_batch(const instruments::Device& device, const TimingGoal& goal,
                   const std::vector<double>& samples, double total, Clock::time_point start) {
  if (samples.empty()) return 1;
  const auto taken = static_cast<int64_t>(samples.size());
  const auto now = Clock::now();
  if (taken >= goal.most_iterations || now >= goal.deadline) return 0;
  const double count = static_cast<double>(taken);
  const double seconds = std::max(total / count, 1e-9);
  double wanted = std::min((goal.min_seconds - total) / seconds, largest_batch(device, seconds));
  auto deadline = goal.deadline;
  if (total >= goal.min_seconds) {
    if (goal.precision <= 0 || now >= goal.precision_deadline) return 0;
    const auto reached = steadiness(samples);
    if (reached && *reached <= goal.precision) return 0;
    // Looking sorts all of them: a larger batch each time keeps that short beside the timing.
    wanted = device.is_gpu() ? std::min(count / 5, kMostEvents) : count / 5;
    deadline = std::min(deadline, goal.precision_deadline);
  }
  const double elapsed = seconds_since(start, now);
  const double left = seconds_since(now, deadline) / std::max(elapsed / count, 1e-9);
  return std::clamp(static_cast<int64_t>(std::min(wanted, left)), int64_t{1},
                    goal.most_iterations - taken);
}

// Iterations after which memory that has not settled will not.
constexpr int kMostUnsettled = 10;

}  // namespace

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

CacheFlusher::CacheFlusher(const instruments::Device& device) : device_(device) {
  // Of an unknown size, as much as the largest known.
  const int64_t where_unknown = int64_t{device.is_gpu() ? 256 : 64} << 20;
  const int64_t cache = device.description().last_level_cache_bytes;
  const int64_t bytes = 2 * (cache > 0 ? cache : where_unknown);
  const auto options = at::TensorOptions().dtype(c10::ScalarType::Byte).device(device.torch());
  if (device.is_gpu()) {
    buffer_ = at::empty({bytes}, options);
  } else {
    // not by the allocator of tensors, whose limit is for the cases alone
    host_ = std::make_unique<uint8_t[]>(static_cast<size_t>(bytes));
    buffer_ = at::from_blob(host_.get(), {bytes}, options);
  }
}

void CacheFlusher::flush() {
  buffer_.add_(1);
}

Timing time_until(const instruments::Device& device, WorkItem& item, CacheFlusher* flusher,
                  const TimingGoal& goal) {
  Timing timing;
  double preparing_cpu = 0;
  const auto prepare = [&] {
    const double begin = thread_cpu_seconds();
    item.prepare();
    if (flusher) flusher->flush();
    preparing_cpu += thread_cpu_seconds() - begin;
  };
  const auto run = [&] { item.run(); };
  // With cold caches only the first of several iterations in a sample would find them cold; and
  // where the user says how many iterations there are, each is a sample.
  if (device.is_gpu() && !flusher && item.runs_in_a_row() &&
      goal.most_iterations == TimingGoal().most_iterations) {
    const double once =
        instruments::time_iterations(device, 1, prepare, run, goal.deadline).front();
    timing.runs = runs_of_a_gpu_sample(once);
  }
  preparing_cpu = 0;
  double total = 0;
  const auto start = Clock::now();
  const double cpu_start = thread_cpu_seconds();
  while (const int64_t count = next_batch(device, goal, timing.seconds, total, start)) {
    const auto batch =
        instruments::time_iterations(device, count, prepare, run, goal.deadline, timing.runs);
    timing.seconds.insert(timing.seconds.end(), batch.begin(), batch.end());
    total += std::accumulate(batch.begin(), batch.end(), 0.0) * static_cast<double>(timing.runs);
  }
  const double iterations =
      static_cast<double>(timing.runs) * static_cast<double>(timing.seconds.size());
  timing.cpu_seconds = (thread_cpu_seconds() - cpu_start - preparing_cpu) / iterations;
  return timing;
}

int64_t runs_of_a_gpu_sample(double seconds) {
  constexpr double shortest_sample = 50e-6;
  constexpr double most_runs = 100;
  return static_cast<int64_t>(
      std::clamp(std::ceil(shortest_sample / std::max(seconds, 1e-9)), 1.0, most_runs));
}

bool waits_for_host(double seconds, double device_seconds) {
  return device_seconds < 0.9 * seconds;
}

double warm_up(const instruments::Device& device, WorkItem& item, double min_seconds,
               double max_seconds) {
  const auto start = Clock::now();
  instruments::MemoryMeter memory(device);
  instruments::MemoryReading previous;
  double last = 0;
  for (int i = 0;; ++i) {
    memory.start();
    last = time_until(device, item, nullptr, {.most_iterations = 1}).seconds.front();
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

}  // namespace tinyllama::harness

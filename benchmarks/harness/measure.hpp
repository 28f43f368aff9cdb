// Warm-up, metering and timing of one work item.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "benchmarks/harness/component.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "benchmarks/instruments/operator_profile.hpp"
#include "benchmarks/instruments/timer.hpp"

namespace tinyllama::harness {

/// What iterations of their own, never timed, tell about a work item.
struct Metering {
  int64_t peak_bytes = 0;   ///< of every tensor that the case keeps and makes
  int64_t allocations = 0;  ///< an iteration
  int64_t operators = 0;    ///< an iteration
  instruments::OperatorProfile profile;
  /// Largest scratch of libraries; nothing where it is among the tensors.
  std::optional<int64_t> library_scratch_bytes{};
};

/// Makes caches cold before an iteration by writing twice the last-level cache's size.
class CacheFlusher {
 public:
  explicit CacheFlusher(const instruments::Device& device);
  void flush();

 private:
  at::Tensor buffer_;
};

/// Runs iterations for at least `min_seconds` and until two in a row make equally many allocations
/// and the allocator asks the system for nothing more, but 10 at most for the latter; `max_seconds`
/// ends it in any case. Returns seconds of the last.
double warm_up(const instruments::Device& device, WorkItem& item, double min_seconds,
               double max_seconds);

/// `foreign_bytes`: what was live before the item was built and is not its own.
Metering meter(const instruments::Device& device, WorkItem& item, int64_t foreign_bytes);

/// Where a measurement ends before its iterations are done, and what is not to count as its time.
struct TimingBounds {
  instruments::TimePoint deadline = instruments::TimePoint::max();
  benchmark::State* state = nullptr;  ///< whose own clocks rest during preparation
};

/// Seconds of each iteration; of fewer than `iterations` where the deadline comes first.
std::vector<double> time_work(const instruments::Device& device, WorkItem& item, int64_t iterations,
                              CacheFlusher* flusher, const TimingBounds& bounds = {});

}  // namespace tinyllama::harness

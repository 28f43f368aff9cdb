// Warm-up, metering and timing of one work item.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "benchmarks/harness/component.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/memory_meter.hpp"
#include "benchmarks/instruments/operator_profile.hpp"

namespace tinyllama::harness {

/// What iterations of their own, never timed, tell about a work item.
struct Metering {
  int64_t peak_bytes = 0;   ///< of everything the case keeps and makes
  int64_t allocations = 0;  ///< an iteration
  int64_t operators = 0;    ///< an iteration
  instruments::OperatorProfile profile;
};

/// Makes caches cold before an iteration by writing twice the last-level cache's size.
class CacheFlusher {
 public:
  explicit CacheFlusher(const instruments::Device& device);
  void flush();

 private:
  at::Tensor buffer_;
};

/// Runs iterations until two in a row make equally many allocations and the allocator asks the
/// system for nothing more, and at least for `min_seconds`; at most `max_seconds` or 10 iterations.
/// Returns seconds of the last.
double warm_up(const instruments::Device& device, WorkItem& item, double min_seconds,
               double max_seconds);

/// `foreign_bytes`: what was live before the item was built and is not its own.
Metering meter(const instruments::Device& device, WorkItem& item, int64_t foreign_bytes);

/// Seconds of each iteration.
std::vector<double> time_work(const instruments::Device& device, WorkItem& item, int64_t iterations,
                              CacheFlusher* flusher);

}  // namespace tinyllama::harness

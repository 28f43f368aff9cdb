// What the processor's own counters say of work (Linux's perf_event_open): instructions, cycles and
// what the last cache did not have.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tinyllama::instruments {

/// One event as the kernel numbers it (perf_event_open(2)).
struct HardwareEvent {
  std::string name;
  uint32_t type;
  uint64_t config;
};

/// instructions, cycles and cache_misses: of the last level, as the kernel defines
/// PERF_COUNT_HW_CACHE_MISSES on this processor.
const std::vector<HardwareEvent>& hardware_events();

struct HardwareCounts {
  /// By the event's name, of all threads of this process in user mode; where the kernel let an
  /// event take turns with others, extrapolated to the whole time.
  std::map<std::string, double> counts;
  /// Why there are none: the kernel's answer, and what to do; empty where there are.
  std::string lack;
};

/// Why these events cannot be counted here; empty where they can.
std::string why_no_counts(const std::vector<HardwareEvent>& events = hardware_events());

/// Counts while `work` runs, once. It runs as well where nothing can be counted. Threads that it
/// starts are counted with the one that starts them. What it throws goes through.
HardwareCounts count_events(const std::function<void()>& work,
                            const std::vector<HardwareEvent>& events = hardware_events());

}  // namespace tinyllama::instruments

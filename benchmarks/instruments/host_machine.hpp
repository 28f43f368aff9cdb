// What the kernel says about this machine's processor and memory. Internal to the instruments.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace tinyllama::instruments::host_machine {

/// "model name" of /proc/cpuinfo; where the kernel gives none (Arm), the machine type and
/// "processor".
std::string processor_name();
/// Logical processors that this process may use, by number: those of all its threads and of
/// OpenMP's places. The calling thread's alone would not do, since OpenMP may have bound it to one
/// of them.
std::vector<int> usable_processors();
/// Sum of the last-level caches that those processors share; 0 where the kernel does not say.
int64_t last_level_cache_bytes();

struct Memory {
  int64_t total_bytes = 0;  ///< RAM or, where lower, the tightest limit of our control groups
  int64_t available_bytes =
      0;  ///< what a new allocation could get now: MemAvailable or what the groups leave
};
Memory memory();

/// Bytes that the control groups leave to a process and the tightest limit; the largest int64_t
/// where nothing limits.
struct ControlGroupMemory {
  int64_t limit_bytes = std::numeric_limits<int64_t>::max();
  int64_t available_bytes = std::numeric_limits<int64_t>::max();
};
/// `membership` is /proc/self/cgroup and `mount` is /sys/fs/cgroup, version 1, version 2 or both.
ControlGroupMemory control_group_memory(const std::filesystem::path& membership,
                                        const std::filesystem::path& mount);

}  // namespace tinyllama::instruments::host_machine

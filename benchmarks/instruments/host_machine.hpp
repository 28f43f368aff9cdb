// What the kernel says about this machine's processors and memory, and which of the processors our
// threads run on.
#pragma once

#include <sched.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tinyllama::instruments {
namespace host_machine {

/// The first line of a file; nothing where it cannot be read.
std::optional<std::string> first_line(const std::filesystem::path& file);
/// The number that the file begins with, whatever follows it.
std::optional<double> first_number(const std::filesystem::path& file);

/// "model name" of the first processor in /proc/cpuinfo. Virtual machines may say no more than "AMD
/// EPYC", which processors of several generations are: then with family and model, by which the
/// maker tells them apart. Where the kernel gives none (Arm), the machine type and "processor".
std::string processor_name(const std::filesystem::path& cpuinfo = "/proc/cpuinfo");
/// Logical processors that this process may use, by number: those of all its threads and of
/// OpenMP's places. The calling thread's alone would not do, since OpenMP may have pinned it to one
/// of them.
std::vector<int> usable_processors();
/// Sum of the last-level caches that these processors share; 0 where the kernel does not say.
int64_t last_level_cache_bytes(const std::vector<int>& of_threads,
                               const std::filesystem::path& processors = "/sys/devices/system/cpu");

/// usable_processors() as taskset writes them: "0", "0-3,8".
std::string allowed_processors();

struct Memory {
  int64_t total_bytes = std::numeric_limits<int64_t>::max();
  int64_t available_bytes = std::numeric_limits<int64_t>::max();  ///< for a new allocation now
};
/// RAM and MemAvailable or, where lower, what our control groups allow and leave.
Memory memory();
/// Processor seconds that all threads of this process have used.
double process_seconds();
/// Memory that the process has of the system now (resident set), tensors or not; nothing where the
/// kernel does not say.
std::optional<int64_t> resident_bytes();
/// The most of it from reset to read; where it cannot be reset, since the start.
void reset_peak_resident_bytes();
std::optional<int64_t> peak_resident_bytes();
/// The tightest limit of the control groups alone and what they leave; the largest int64_t where
/// nothing limits. `membership` is /proc/self/cgroup and `mount` is /sys/fs/cgroup, version 1,
/// version 2 or both.
Memory control_group_memory(const std::filesystem::path& membership,
                            const std::filesystem::path& mount);
/// How many processors' time the control groups allow; nothing where they set no quota. Files as of
/// control_group_memory().
std::optional<double> control_group_processors(const std::filesystem::path& membership,
                                               const std::filesystem::path& mount);
/// The same for this process's own groups.
std::optional<double> processor_quota();

}  // namespace host_machine

// One processor for each OpenMP thread.
//
// Waiting OpenMP threads spin. A scheduler that groups tasks by session (Linux's autogroup) may put
// two of them on one processor while another program has the next one; each parallel operator then
// lasts until the time slice ends (8 ms measured, for operators of 20 us). Pinned threads share at
// worst one processor with others.
//
// OpenMP binds the main thread too, and threads inherit the processors of the one that starts them:
// other threads are started by the functions here, because they would otherwise share that
// processor with what is timed.

/// Starts the program anew with OMP_PROC_BIND=true, which OpenMP reads before main(). Does nothing
/// where the user has said how threads are placed or how many there are (OMP_PROC_BIND, OMP_PLACES,
/// OMP_NUM_THREADS, GOMP_CPU_AFFINITY, KMP_AFFINITY), for fewer threads than processors (--threads,
/// a quota), which in two such programs would be pinned to the same processors, or when the program
/// cannot be started again.
void pin_openmp_threads(char** argv, std::optional<int> asked_threads);

/// Sets the number of threads of libtorch's operators: as asked for, else at most the number of
/// whole processors that a quota allows.
void set_threads(std::optional<int> asked);

/// While it lives, the calling thread may run on every processor of the process; threads that it
/// starts meanwhile may do so as long as they live.
class OnAllProcessors {
 public:
  OnAllProcessors();
  ~OnAllProcessors();
  OnAllProcessors(const OnAllProcessors&) = delete;
  OnAllProcessors& operator=(const OnAllProcessors&) = delete;

 private:
  cpu_set_t before_;
  bool changed_ = false;
};

/// autograd's threads, one a GPU, which otherwise the first backward starts. Without a GPU there
/// are none: a backward runs in the thread that calls it.
void start_autograd_threads();

}  // namespace tinyllama::instruments

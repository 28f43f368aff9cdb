#include "benchmarks/instruments/hardware_counters.hpp"

#include <fmt/format.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tinyllama::instruments {
namespace {

// A counter of one event in one thread and those that it starts. It counts from begin() on.
class Counter {
 public:
  Counter(const HardwareEvent& event, pid_t thread) {
    perf_event_attr wanted = {};
    wanted.size = sizeof wanted;
    wanted.type = event.type;
    wanted.config = event.config;
    wanted.disabled = 1;
    wanted.inherit = 1;
    // The kernel's own work needs a permission that users seldom have.
    wanted.exclude_kernel = 1;
    wanted.exclude_hv = 1;
    wanted.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    file_ = static_cast<int>(
        ::syscall(SYS_perf_event_open, &wanted, thread, -1, -1, PERF_FLAG_FD_CLOEXEC));
    error_ = file_ < 0 ? errno : 0;
  }
  ~Counter() {
    if (file_ >= 0) ::close(file_);
  }
  Counter(Counter&& other) noexcept : file_(std::exchange(other.file_, -1)), error_(other.error_) {}
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;
  Counter& operator=(Counter&&) = delete;

  int error() const { return error_; }
  void begin() { ::ioctl(file_, PERF_EVENT_IOC_ENABLE, 0); }
  void end() { ::ioctl(file_, PERF_EVENT_IOC_DISABLE, 0); }

  double count() const {
    struct {
      uint64_t value;
      uint64_t nanoseconds_enabled;
      uint64_t nanoseconds_running;
    } read = {};
    // A thread that never ran meanwhile has counted nothing.
    if (::read(file_, &read, sizeof read) != sizeof read || read.nanoseconds_running == 0) return 0;
    return static_cast<double>(read.value) * static_cast<double>(read.nanoseconds_enabled) /
           static_cast<double>(read.nanoseconds_running);
  }

 private:
  int file_ = -1;
  int error_ = 0;
};

std::vector<pid_t> threads_of_process() {
  std::vector<pid_t> threads;
  std::error_code none;
  for (std::filesystem::directory_iterator entry("/proc/self/task", none), end;
       !none && entry != end; entry.increment(none)) {
    const std::string name = entry->path().filename().string();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    threads.push_back(thread);
  }
  return threads;
}

std::string refusal(const HardwareEvent& event, int error) {
  const std::string why = std::generic_category().message(error);
  const char* remedy = "";
  if (error == EACCES || error == EPERM)
    remedy =
        "; the kernel's perf_event_paranoid has to be 2 or less, and a container's seccomp "
        "profile has to allow perf_event_open";
  if (error == ENOENT || error == EOPNOTSUPP || error == ENODEV)
    remedy = "; virtual machines often have no such counters";
  return fmt::format("perf_event_open of {}: {}{}", event.name, why, remedy);
}

}  // namespace

const std::vector<HardwareEvent>& hardware_events() {
  static const std::vector<HardwareEvent> events = {
      {"instructions", PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS},
      {"cycles", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES},
      {"cache_misses", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES}};
  return events;
}

std::string why_no_counts(const std::vector<HardwareEvent>& events) {
  for (const HardwareEvent& event : events) {
    const Counter probe(event, 0);
    if (probe.error() != 0) return refusal(event, probe.error());
  }
  return {};
}

HardwareCounts count_events(const std::function<void()>& work,
                            const std::vector<HardwareEvent>& events) {
  HardwareCounts found;
  found.lack = why_no_counts(events);
  std::vector<std::pair<const HardwareEvent*, Counter>> counters;
  if (found.lack.empty()) {
    for (const pid_t thread : threads_of_process()) {
      for (const HardwareEvent& event : events) {
        counters.emplace_back(&event, Counter(event, thread));
        // A thread that has ended since it was listed; else a count would leave its work out.
        const int error = counters.back().second.error();
        if (error == 0) continue;
        counters.pop_back();
        if (error != ESRCH) found.lack = refusal(event, error);
      }
    }
  }
  if (!found.lack.empty()) counters.clear();
  for (auto& [event, counter] : counters) counter.begin();
  work();
  for (auto& [event, counter] : counters) counter.end();
  for (const auto& [event, counter] : counters) found.counts[event->name] += counter.count();
  return found;
}

}  // namespace tinyllama::instruments

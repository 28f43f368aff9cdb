#include "benchmarks/instruments/host_machine.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <omp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <torch/csrc/autograd/engine.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string_view>

namespace tinyllama::instruments {
namespace host_machine {
namespace {

namespace fs = std::filesystem;

/// The number after `key` in a file of "key value" or "key: value kB" lines; 0 where there is none.
int64_t value_of(const fs::path& file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(key)) return std::strtoll(line.c_str() + key.size(), nullptr, 10);
  }
  return 0;
}

std::optional<int64_t> bytes_of_process(std::string_view key) {
  constexpr int64_t kibibyte = 1024;
  const int64_t bytes = value_of("/proc/self/status", key) * kibibyte;
  return bytes > 0 ? std::optional(bytes) : std::nullopt;
}

int64_t integer_of(const fs::path& file) {
  return static_cast<int64_t>(host_machine::first_number(file).value_or(0));
}

/// The names in which the two versions of control groups keep the same three figures.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive_file_key;
};
constexpr GroupFiles version_1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};
constexpr GroupFiles version_2{"memory.max", "memory.current", "inactive_file"};

void tighten(Memory& result, const fs::path& folder, const GroupFiles& files) {
  // "max", and version 1's "no limit" (the largest page-aligned number), are no limits.
  constexpr double unlimited = 0x1p60;
  if (first_number(folder / files.limit).value_or(unlimited) >= unlimited) return;
  const int64_t limit = integer_of(folder / files.limit);
  // The page cache counts as usage, but its inactive part is given up before an allocation fails.
  const int64_t left = limit - integer_of(folder / files.usage) +
                       value_of(folder / "memory.stat", files.inactive_file_key);
  result.total_bytes = std::min(result.total_bytes, limit);
  result.available_bytes = std::min(result.available_bytes, std::clamp(left, int64_t{0}, limit));
}

/// The folders of this process's groups that have the controller, with all of their ancestors,
/// whose limits hold too, by the version of control groups.
struct GroupFolders {
  std::vector<fs::path> version_1;
  std::vector<fs::path> version_2;
};
GroupFolders group_folders(const fs::path& membership, const fs::path& mount,
                           const std::string& controller) {
  GroupFolders found;
  const auto add = [](std::vector<fs::path>& folders, const fs::path& root, const fs::path& group) {
    for (fs::path relative = group.relative_path();; relative = relative.parent_path()) {
      folders.push_back(relative.empty() ? root : root / relative);
      if (relative.empty()) return;
    }
  };
  std::ifstream stream(membership);
  // Lines are "hierarchy:controllers:path"; version 2 is hierarchy 0 without controllers.
  for (std::string line; std::getline(stream, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,") {
      add(found.version_2, mount, group);
      add(found.version_2, mount / "unified", group);
    } else if (controllers.find(fmt::format(",{},", controller)) != std::string::npos) {
      add(found.version_1, mount / controller, group);
    }
  }
  return found;
}

struct Cache {
  int64_t level = 0;
  int64_t bytes = 0;
  std::string shared_by;
};

/// The highest level among the caches of one processor, as the kernel lists them.
Cache last_level_cache_of(int processor, const fs::path& processors) {
  Cache last;
  const fs::path folder = processors / fmt::format("cpu{}/cache", processor);
  for (int index = 0;; ++index) {
    const fs::path entry = folder / fmt::format("index{}", index);
    std::error_code ignored;
    if (!fs::exists(entry, ignored)) return last;
    const int64_t level = integer_of(entry / "level");
    const std::string size = first_line(entry / "size").value_or("");
    if (level <= last.level || first_line(entry / "type") == "Instruction") continue;
    const int64_t unit = size.ends_with('M') ? 1 << 20 : size.ends_with('K') ? 1 << 10 : 1;
    last = {level, integer_of(entry / "size") * unit,
            first_line(entry / "shared_cpu_list").value_or("")};
  }
}

}  // namespace

std::optional<std::string> first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  if (!std::getline(stream, line)) return std::nullopt;
  return line;
}

std::optional<double> first_number(const fs::path& file) {
  std::ifstream stream(file);
  double value = 0;
  if (!(stream >> value)) return std::nullopt;
  return value;
}

std::string processor_name(const fs::path& cpuinfo) {
  std::map<std::string, std::string> first;  // of the first processor: a block of "key : value"
  std::ifstream stream(cpuinfo);
  for (std::string line; std::getline(stream, line) && !line.empty();) {
    const size_t colon = line.find(':');
    const size_t value = line.find_first_not_of(" \t", std::min(colon, line.size() - 1) + 1);
    if (colon == std::string::npos || value == std::string::npos) continue;
    first[line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1)] = line.substr(value);
  }
  const std::string name = first["model name"];
  if (name.empty()) {
    utsname machine{};
    uname(&machine);
    return std::string(machine.machine) + " processor";
  }
  const bool names_a_model =
      std::ranges::any_of(name, [](unsigned char c) { return std::isdigit(c); });
  if (names_a_model || !first.contains("cpu family") || !first.contains("model")) return name;
  return fmt::format("{} family {} model {}", name, first["cpu family"], first["model"]);
}

std::vector<int> usable_processors() {
  std::set<int> found;
  std::error_code unknown;
  for (const auto& thread : fs::directory_iterator("/proc/self/task", unknown)) {
    const std::string name = thread.path().filename().string();
    pid_t number = 0;
    std::from_chars(name.data(), name.data() + name.size(), number);
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(number, sizeof set, &set) != 0) continue;
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
      if (CPU_ISSET(processor, &set)) found.insert(processor);
    }
  }
  for (int place = 0; place < ::omp_get_num_places(); ++place) {
    std::vector<int> processors(static_cast<size_t>(::omp_get_place_num_procs(place)));
    ::omp_get_place_proc_ids(place, processors.data());
    found.insert(processors.begin(), processors.end());
  }
  return {found.begin(), found.end()};
}

int64_t last_level_cache_bytes(const std::vector<int>& of_threads, const fs::path& processors) {
  std::map<std::string, int64_t> distinct;
  for (const int processor : of_threads) {
    const Cache cache = last_level_cache_of(processor, processors);
    if (cache.bytes > 0) distinct[cache.shared_by] = cache.bytes;
  }
  int64_t sum = 0;
  for (const auto& [shared_by, bytes] : distinct) sum += bytes;
  return sum;
}

std::string allowed_processors() {
  const std::vector<int> usable = usable_processors();
  std::string text;
  for (size_t i = 0; i < usable.size(); ++i) {
    const size_t first = i;
    while (i + 1 < usable.size() && usable[i + 1] == usable[i] + 1) ++i;
    text += fmt::format("{}{}", text.empty() ? "" : ",", usable[first]);
    if (i > first) text += fmt::format("-{}", usable[i]);
  }
  return text.empty() ? "unknown" : text;
}

Memory memory() {
  constexpr int64_t kibibyte = 1024;
  const fs::path meminfo = "/proc/meminfo";
  const Memory groups = control_group_memory("/proc/self/cgroup", "/sys/fs/cgroup");
  return {std::min(value_of(meminfo, "MemTotal:") * kibibyte, groups.total_bytes),
          std::min(value_of(meminfo, "MemAvailable:") * kibibyte, groups.available_bytes)};
}

double process_seconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

void reset_peak_resident_bytes() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

std::optional<int64_t> resident_bytes() {
  return bytes_of_process("VmRSS:");
}

std::optional<int64_t> peak_resident_bytes() {
  return bytes_of_process("VmHWM:");
}

Memory control_group_memory(const fs::path& membership, const fs::path& mount) {
  Memory result;
  const GroupFolders folders = group_folders(membership, mount, "memory");
  for (const fs::path& folder : folders.version_1) tighten(result, folder, version_1);
  for (const fs::path& folder : folders.version_2) tighten(result, folder, version_2);
  return result;
}

std::optional<double> control_group_processors(const fs::path& membership, const fs::path& mount) {
  std::optional<double> tightest;
  const auto tighten_to = [&](double quota, double period) {
    if (quota <= 0 || period <= 0) return;
    tightest = std::min(tightest.value_or(quota / period), quota / period);
  };
  const GroupFolders folders = group_folders(membership, mount, "cpu");
  for (const fs::path& folder : folders.version_1)
    tighten_to(first_number(folder / "cpu.cfs_quota_us").value_or(0),
               first_number(folder / "cpu.cfs_period_us").value_or(0));
  for (const fs::path& folder : folders.version_2) {
    std::ifstream stream(folder / "cpu.max");
    double quota = 0;  // or "max"
    double period = 0;
    if (stream >> quota >> period) tighten_to(quota, period);
  }
  return tightest;
}

std::optional<double> processor_quota() {
  return control_group_processors("/proc/self/cgroup", "/sys/fs/cgroup");
}

}  // namespace host_machine

void pin_openmp_threads(char** argv, std::optional<int> asked_threads) {
  const auto processors = static_cast<double>(host_machine::usable_processors().size());
  const double quota = host_machine::processor_quota().value_or(processors);
  if (quota < processors || (asked_threads && *asked_threads < processors)) return;
  for (const char* name :
       {"OMP_PROC_BIND", "OMP_PLACES", "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    if (std::getenv(name) != nullptr) return;
  }
  ::setenv("OMP_PROC_BIND", "true", 1);
  // By its own path: the process keeps its name, which users look for in ps and top.
  std::error_code unknown;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (!unknown) ::execv(program.c_str(), argv);
  ::unsetenv("OMP_PROC_BIND");  // exec failed: go on unpinned, and say so in the context
}

void set_threads(std::optional<int> asked) {
  if (asked) return at::set_num_threads(*asked);
  const auto quota = host_machine::processor_quota();
  if (quota && *quota < at::get_num_threads())
    at::set_num_threads(std::max(1, static_cast<int>(*quota)));
}

// Where the kernel does not say or refuses, threads stay where they are: that costs time, not
// truth.
OnAllProcessors::OnAllProcessors() {
  CPU_ZERO(&before_);
  if (::sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const int processor : host_machine::usable_processors()) CPU_SET(processor, &all);
  changed_ = ::sched_setaffinity(0, sizeof all, &all) == 0;
}

OnAllProcessors::~OnAllProcessors() {
  if (changed_) ::sched_setaffinity(0, sizeof before_, &before_);
}

void start_autograd_threads() {
  const OnAllProcessors for_its_threads;
  torch::autograd::Engine::get_default_engine().initialize_device_threads_pool();
}

}  // namespace tinyllama::instruments

#include "benchmarks/instruments/thread_pinning.hpp"

#include <torch/csrc/autograd/engine.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "benchmarks/instruments/host_machine.hpp"

namespace tinyllama::instruments {

void pin_openmp_threads(char** argv) {
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

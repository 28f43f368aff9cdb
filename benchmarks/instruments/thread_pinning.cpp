#include "benchmarks/instruments/thread_pinning.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

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

}  // namespace tinyllama::instruments

#include "benchmarks/instruments/thread_pinning.hpp"

#include <unistd.h>

#include <cstdlib>

namespace tinyllama::instruments {

void pin_openmp_threads(char** argv) {
  for (const char* name :
       {"OMP_PROC_BIND", "OMP_PLACES", "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    if (std::getenv(name) != nullptr) return;
  }
  ::setenv("OMP_PROC_BIND", "true", 1);
  ::execv("/proc/self/exe", argv);
  ::unsetenv("OMP_PROC_BIND");  // exec failed: go on unpinned, and say so in the context
}

}  // namespace tinyllama::instruments

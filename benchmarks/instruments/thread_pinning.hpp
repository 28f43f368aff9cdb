// One processor for each OpenMP thread.
//
// Waiting OpenMP threads spin. A scheduler that groups tasks by session (Linux's autogroup) may put
// two of them on one processor while another program has the next one; each parallel operator then
// lasts until the time slice ends (8 ms measured, for operators of 20 us). Pinned threads share at
// worst one processor with others.
//
// OpenMP binds the main thread too, and threads inherit the processors of the one that starts them:
// what is no OpenMP thread is started by the functions here, or it would share that processor with
// what is timed.
#pragma once

#include <sched.h>

namespace tinyllama::instruments {

/// Starts the program anew with OMP_PROC_BIND=true, which OpenMP reads before main(). Does nothing
/// where the user has said how threads are placed or how many there are (OMP_PROC_BIND, OMP_PLACES,
/// OMP_NUM_THREADS, GOMP_CPU_AFFINITY, KMP_AFFINITY), or when the program cannot be started again.
void pin_openmp_threads(char** argv);

/// While it lives, the calling thread may run on every processor of the process, and so may the
/// threads that it starts, for good.
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

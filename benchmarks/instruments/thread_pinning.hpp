// One processor for each OpenMP thread.
//
// Waiting OpenMP threads spin. A scheduler that groups tasks by session (Linux's autogroup) may put
// two of them on one processor while another program has the next one; each parallel operator then
// lasts until the time slice ends (8 ms measured, for operators of 20 us). Pinned threads share at
// worst one processor with others.
#pragma once

namespace tinyllama::instruments {

/// Starts the program anew with OMP_PROC_BIND=true, which OpenMP reads before main(). Does nothing
/// where the user has said how threads are placed or how many there are (OMP_PROC_BIND, OMP_PLACES,
/// OMP_NUM_THREADS, GOMP_CPU_AFFINITY, KMP_AFFINITY), or when the program cannot be started again.
void pin_openmp_threads(char** argv);

}  // namespace tinyllama::instruments

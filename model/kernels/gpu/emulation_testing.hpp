// A GPU on the host: one block at a time, a std::thread for each of its threads. Slow, but the
// kernels are the same source, so their arithmetic, bounds and barriers are tested where no GPU is.
#pragma once

#include <barrier>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(threads)
// One block at a time: what its threads share, a static can hold.
#define __shared__ static

namespace tinyllama::kernels::gpu_emulated {

// Small, so that short rows already need more than one turn of each thread.
inline constexpr int kSmallestBlock = 2;
inline constexpr int kLargestBlock = 8;
inline constexpr int64_t kMostBlocks = 3;

struct Grid {
  int64_t x = 1, y = 1;
};

struct Index {
  unsigned x = 0, y = 0;
};
inline thread_local Index threadIdx, blockIdx, blockDim, gridDim;
inline thread_local std::barrier<>* block_barrier = nullptr;

inline void __syncthreads() {
  block_barrier->arrive_and_wait();
}

template <class... Parameters, class... Arguments>
void launch(GpuStream /*stream*/, Grid grid, int threads, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  std::barrier<> barrier(threads);
  const auto run_thread = [&](int thread) {
    threadIdx = {static_cast<unsigned>(thread), 0};
    blockDim = {static_cast<unsigned>(threads), 1};
    gridDim = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)};
    block_barrier = &barrier;
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y};
        kernel(arguments...);
        barrier.arrive_and_wait();
      }
    }
  };
  std::vector<std::jthread> running;
  for (int thread = 0; thread < threads; ++thread) running.emplace_back(run_thread, thread);
}

template <class... Parameters>
bool runs_here(void (* /*kernel*/)(Parameters...)) {
  return true;
}

}  // namespace tinyllama::kernels::gpu_emulated

// What a case throws, in words, so that the run goes on; and the limit of memory meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// Sets the limit of host memory (0: none) while it lives, and the earlier one again at its end.
class AllocationLimit {
 public:
  explicit AllocationLimit(int64_t bytes);
  ~AllocationLimit();
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;

 private:
  int64_t before_;
};

/// Runs `step` under this limit of host memory (0: none; not applied on a GPU). Returns the message
/// of what it threw; empty if nothing.
std::string failure_of(const instruments::Device& device, int64_t memory_limit_bytes,
                       const std::function<void()>& step);

/// Returns when what earlier backwards held is free: one that threw leaves its tasks in this
/// thread's queue until the next, and the thread that runs a GPU's backwards may still hold tensors
/// of the last when that has returned.
void finish_backwards(const instruments::Device& device);

/// Gives back what the allocator keeps for later. An error of the device is ignored: the next case
/// will meet and report it.
void release_memory(const instruments::Device& device);

}  // namespace tinyllama::harness
